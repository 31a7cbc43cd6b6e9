"""Makes the manifest of a library: its description in JSON, which people can read without running the library."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from collc import __version__
from collc.build.memory import fifo_bytes_by_rank, pinned_bytes, server_bytes, transfer_bytes
from collc.checker.elf import Elf
from collc.checker.library import claims_of, link_counts, loaded_digests, manifest_place, read_manifest
from collc.checker.manifest import FORMAT, digests_text, zero_digests
from collc.codegen.entry import Entry
from collc.ir.nodes import Program
from collc.options import Target, TargetKind
from collc.packing.document import PlanFile
from collc.packing.model import Plan
from collc.packing.sets.gpu_sets import GpuSets
from collc.topology.model import JOINT
from collc.topology.staging import staged_pairs


def slot_bytes(programs: Sequence[Program]) -> int:
    """Returns the bytes of a slot of an allocation: the largest chunk, rounded up to a multiple of 128 bytes."""
    return -(-max(program.chunk_bytes for program in programs) // 128) * 128


# The bytes of a slot per byte of its chunk. LL sends a flag of 4 bytes with every 4 bytes, LL128 one of 8 with every
# 120.
_SLOT_PER_CHUNK = {"Simple": Fraction(1), "LL": Fraction(2), "LL128": Fraction(16, 15)}


# The number of places of each slot between two ranks of the host target: kPlaces of base/two_ranks.h.
PLACES = 4


def fifo_memory(entries: Sequence[Entry], slots: int, most: int | None = None) -> int:
    """Returns the bytes of all FIFOs of an allocation.

    Each FIFO has slots for every protocol of the entries. Each slot fits the largest chunk of its protocol.

    Args:
        slots: the number of slots of a FIFO for one protocol.
        most: the largest chunk, in bytes; larger chunks count as this.
    """
    programs = {id(entry.program.fifos): entry.program for entry in entries}.values()
    fifos = {fifo.memory for program in programs for fifo in program.fifos}
    largest: dict[str, int] = {}
    for entry in entries:
        chunk = entry.program.chunk_bytes if most is None else min(most, entry.program.chunk_bytes)
        largest[entry.when.protocol] = max(chunk, largest.get(entry.when.protocol, 0))
    size = sum((_SLOT_PER_CHUNK[protocol] * chunk for protocol, chunk in largest.items()), Fraction(0))
    return len(fifos) * slots * -(-size.numerator // size.denominator)


def make_manifest(
    documents: Sequence[PlanFile],
    entries: Sequence[Sequence[Entry]],
    gpu_sets: GpuSets,
    target: Target,
    compiler: str,
    build_id: str,
) -> dict[str, Any]:
    """Returns the manifest of a library.

    Args:
        documents: the plan file of each allocation.
        entries: the entries of each allocation.
    """
    set_counts = [sum(row.allocation == number for row in gpu_sets.sets) for number in range(len(documents))]
    return {
        "format": FORMAT,
        "name": documents[0].name,
        "collc": __version__,
        "target": target.kind.value,
        "build_id": build_id,
        "compiler": compiler,
        "gpus": list(gpu_sets.names),
        "allocations": [
            {
                "fingerprint": document.fingerprint,
                "nranks": document.graph.nranks,
                "gpus": [document.graph.vertices[r].name for r in document.graph.ranks],
                "servers": list(document.graph.rank_servers),
                "gpu_sets": sets,
                "slots": max(entry.program.slots for entry in rows),
                "slot_bytes": slot_bytes([entry.program for entry in rows]),
                "fifo_bytes": fifo_bytes(rows, document.graph.rank_servers, target),
                "gpu_bytes": _gpu_bytes(rows, document.graph.rank_servers, target),
                **_host_fields(document, rows, target),
                "programs": [_program_fields(document.plans[entry.plan], entry) for entry in rows],
            }
            for document, rows, sets in zip(documents, entries, set_counts, strict=True)
        ],
        "loaded": zero_digests(),
    }


def fifo_bytes(entries: Sequence[Entry], servers: Sequence[str], target: Target) -> int:
    """Returns the bytes that a communicator reserves for FIFOs.

    On the CUDA target this is the memory of all GPUs, and each FIFO has the slots that its programs need. On the host
    target it is the memory of the server that reserves most. There all FIFOs of an allocation have equal slots, and a
    server reserves each FIFO with an end on the server (templates/runtime/transport/fifo.cpp).

    Args:
        servers: the server of each rank.
    """
    if target.kind is TargetKind.CUDA:
        return sum(fifo_bytes_by_rank(entries, len(servers)))
    programs = [entry.program for entry in entries]
    lists = {id(program.fifos): program.fifos for program in programs}.values()
    fifos = {fifo.memory: fifo for fifos in lists for fifo in fifos}.values()
    ends = Counter(server for fifo in fifos for server in {servers[rank] for rank in (fifo.src, *fifo.dsts)})
    slots, slot = max(program.slots for program in programs), slot_bytes(programs)
    are_powers = slots & slots - 1 == 0 and slot & slot - 1 == 0
    has_places = len(servers) == 2 and len(set(servers)) == 1 and are_powers
    return max(ends.values(), default=0) * slots * slot * (PLACES if has_places else 1)


def _gpu_bytes(entries: Sequence[Entry], servers: Sequence[str], target: Target) -> int:
    """Returns the bytes of GPU memory for FIFOs and transfers of the rank with the most FIFO bytes.

    0 on the host target and for a single rank.
    """
    nranks = len(servers)
    if target.kind is TargetKind.HOST or nranks == 1:
        return 0
    slot = slot_bytes([entry.program for entry in entries])
    return max(fifo_bytes_by_rank(entries, nranks)) + transfer_bytes(nranks, slot, servers)


def _host_fields(document: PlanFile, entries: Sequence[Entry], target: Target) -> dict[str, Any]:
    """Returns the fields about pinned host memory; all are empty or 0 on the host target.

    These are the pairs of ranks on one server that the topology joins only by host memory, the bytes for pairs, and the
    bytes for the network on the server that takes the most.
    """
    if target.kind is TargetKind.HOST:
        return {"host_pairs": [], "host_bytes": 0, "server_bytes": 0}
    servers = document.graph.rank_servers
    pairs = [(a, b) for a, b in staged_pairs(document.graph) if servers[a] == servers[b]]
    slot = slot_bytes([entry.program for entry in entries])
    pair_bytes = pinned_bytes(entries, document.graph.nranks, slot, pairs)
    network_bytes = server_bytes(entries, servers, target.slots, slot)
    return {"host_pairs": [f"{a}-{b}" for a, b in pairs], "host_bytes": pair_bytes, "server_bytes": network_bytes}


def _program_fields(plan: Plan, entry: Entry) -> dict[str, Any]:
    """Returns the row of a program. `min_bytes` is null if only a tuning file chooses the program."""
    return {
        "collective": plan.collective.value,
        "root": plan.root,
        **claims_of(plan, entry.program),
        "depth": _depth(plan, entry.program),
        "channels": len(entry.program.channels),
        "fifos": len(entry.program.fifos),
        "links": link_counts(entry.program),
        "lags": entry.program.lags,
        "plan_number": entry.plan,
        "spread": entry.spread,
        "everywhere": entry.everywhere,
        "proto": entry.when.protocol,
        "chunk_bytes": entry.program.chunk_bytes,
        "min_bytes": entry.when.min_bytes,
        "why": entry.why,
        **({"weights": dict(zip(JOINT, entry.program.weights, strict=True))} if entry.program.weights else {}),
    }


def _depth(plan: Plan, program: Program) -> int:
    """Returns the depth of the deepest tree, in hops. Inside a switch, a sum is one hop and a copy is another."""
    if program.in_switch:
        return plan.collective.reduces + plan.collective.spreads
    return max((tree.depth for tree in plan.trees), default=0)


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """Returns the manifest as JSON in ASCII, with the same bytes for the same manifest."""
    return json.dumps(manifest, indent=1, ensure_ascii=True)


def sign(library: Path) -> None:
    """Writes the digests of the loaded parts of a library into its manifest, after it is linked."""
    manifest = read_manifest(library)
    with Elf(library) as elf:
        offset, _ = manifest_place(elf, manifest)
        text = digests_text(loaded_digests(elf, manifest))
    with library.open("r+b") as file:
        file.seek(offset)
        file.write(text)
