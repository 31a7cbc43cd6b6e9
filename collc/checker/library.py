"""Reads a library without running it, and proves all its claims from its own bytes.

The checker reads the same bytes that will run: the runtime maps the object `collc_tables`, which has no pointers and is
in read-only memory, without changes. The manifest, the plans and the description of the machine are claims.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

from collc.checker.cards import check_cards
from collc.checker.elf import Elf
from collc.checker.in_switch import check_follows_switch
from collc.checker.layout import When, mbps
from collc.checker.machine import Machine, after_loss, check_sets, read_machine
from collc.checker.manifest import blank_digests, read_claims
from collc.checker.plans import PlanFile, from_json, verify_document
from collc.checker.programs import verify
from collc.checker.tables import Allocation, Contents, decode, table_error
from collc.checker.values import parse_json
from collc.collectives.model import Collective
from collc.errors import IRError, RunError
from collc.ir.nodes import Program
from collc.limits import common_denominator, spend
from collc.packing.model import IN_SWITCH, RINGS, Hop, Plan, Tree
from collc.topology.model import CLASSES, JOINT, PlanGraph, joint_class

OBJECTS = ("collc_tables", "collc_manifest", "collc_manifest_size", "collc_plan", "collc_plan_size")
# Plans are compressed in a library. These limit the bytes and JSON values of plans, for each byte of the library and in
# total.
_BYTES_PER_BYTE, _VALUES_PER_BYTE, _MOST_PLAN_BYTES, _MOST_VALUES = 32, 1, 1 << 24, 1 << 20
_SLACK = Fraction(1, 1 << 30)  # the largest rounding error of a share's boundary

Route = tuple[int, ...]
Edge = tuple[int, int, Route]
Edges = frozenset[tuple[int, tuple[tuple[int, Route], ...]]]
Carried = tuple[int, int]  # (path class, block): the range of a block that a class carries


@dataclass(frozen=True)
class Library:
    """The contents of a library: its manifest, the plans of each allocation, its tables, and its machine."""

    manifest: dict[str, Any]
    documents: tuple[PlanFile, ...]
    tables: Contents
    machine: Machine

    @property
    def programs(self) -> int:
        return sum(len(held.programs) for held in self.tables.allocations)


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest only. It has every required key with a value of its type.

    Raises:
        RunError: the file is not a library of collc.
    """
    with Elf(path) as elf:
        return _manifest(elf, elf.objects(OBJECTS))


def read_library(path: Path) -> Library:
    """Returns the contents of a library. Programs are decoded from the tables that the runtime runs.

    Raises:
        RunError, CertificateError, IRError: it is not a library of collc, or a part is malformed.
    """
    with Elf(path) as elf:
        return _read(elf)


def check_library(path: Path) -> Library:
    """Proves every claim of a library, and returns its contents.

    The claims are: its bytes are the ones that were built, its tables are canonical, each program is correct for every
    count, free of deadlock and follows its plan, and each plan's rate and bound and each set of GPUs are right.

    Raises:
        RunError, CertificateError, IRError: a claim does not hold.
    """
    with Elf(path) as elf:
        _check_digests(elf, _manifest(elf, elf.objects(OBJECTS)))
        library = _read(elf)
    for document, held, claims in zip(
        library.documents, library.tables.allocations, library.manifest["allocations"], strict=True
    ):
        check_allocation(document, held, claims, library.manifest["target"], path)
    check_sets(library.machine, library.tables, library.documents, path)
    check_cards(library.machine, library.tables, library.documents, path)
    return library


def _read(elf: Elf) -> Library:
    objects = elf.objects(OBJECTS)
    manifest = _manifest(elf, objects)
    try:
        tables = decode(objects["collc_tables"][1])
    except IRError as error:
        raise table_error(elf.path, error) from None
    documents, machine = _plans(elf, objects)
    served = Counter(one.allocation for one in tables.sets)
    states = [after_loss(machine, state.changes, elf.path)[1] for state in tables.states] if tables.vertices else []
    truth: dict[str, object] = {
        "name": documents[0].name,
        "gpus": list(tables.names[: tables.ngpus]),
        "states": states,
        "allocations": [
            {
                "fingerprint": document.fingerprint,
                "nranks": held.nranks,
                "gpus": [document.graph.vertices[r].name for r in document.graph.ranks],
                "servers": list(document.graph.rank_servers),
                "gpu_sets": served[number],
                "slots": held.slots,
                "slot_bytes": held.slot_bytes,
            }
            for number, (document, held) in enumerate(zip(documents, tables.allocations, strict=False))
        ],
    }
    if len(documents) != len(tables.allocations):
        raise elf.error(f"holds tables of {len(tables.allocations)} allocations and plans of {len(documents)}")
    if len(manifest["allocations"]) != len(documents):
        raise elf.error("its manifest and its plans name different graphs")
    for claims, found in [(manifest, truth), *zip(manifest["allocations"], truth["allocations"], strict=True)]:  # type: ignore[call-overload]
        for name, value in found.items():
            if name != "allocations" and claims.get(name, []) != value:
                raise elf.error(f"its manifest says {name} {claims.get(name)!r}, it holds {value!r}")
    return Library(manifest, documents, tables, machine)


def _manifest(elf: Elf, objects: Mapping[str, tuple[int, bytes]]) -> dict[str, Any]:
    return read_claims(_sized(elf, objects, "collc_manifest"), elf.path)


def _sized(elf: Elf, objects: Mapping[str, tuple[int, bytes]], name: str) -> bytes:
    size, data = objects[f"{name}_size"][1], objects[name][1]
    if len(size) != 8 or not len(data) - 1 <= int.from_bytes(size, "little") <= len(data):
        raise elf.error(f"does not say how large its {name} is")
    return data[: int.from_bytes(size, "little")]


def _plans(elf: Elf, objects: Mapping[str, tuple[int, bytes]]) -> tuple[tuple[PlanFile, ...], Machine]:
    def fail(what: str) -> Any:
        raise elf.error(f"its plans cannot be read: {what}")

    most = min(_MOST_PLAN_BYTES, _BYTES_PER_BYTE * elf.size)
    try:
        text = zlib.decompressobj().decompress(_sized(elf, objects, "collc_plan"), most)
    except zlib.error as error:
        fail(str(error))
    if len(text) == most:
        fail(f"they have more than {most} bytes")
    value = parse_json(text, fail, min(_VALUES_PER_BYTE * elf.size, _MOST_VALUES))
    if not isinstance(value, dict) or set(value) != {"plans", "machine"} or not isinstance(value["plans"], list):
        fail("expected plans and the machine that they are for")
    if not value["plans"]:
        fail("there are none")
    documents = tuple(from_json(one, f"{elf.path}: plan {number}") for number, one in enumerate(value["plans"]))
    if any(plan.orbits is not None for document in documents for plan in document.plans):
        fail("one gives its trees as orbits, and programs follow trees that are listed")
    return documents, read_machine(value["machine"], f"{elf.path}: machine")


def _check_digests(elf: Elf, manifest: Mapping[str, Any]) -> None:
    found = loaded_digests(elf, manifest)
    for part, claimed in manifest["loaded"].items():
        if found[part] != claimed:
            others = [name for name in found if found[name] != manifest["loaded"][name]]
            raise elf.error(
                f"what is loaded of it is not what was built: its {' and '.join(others)} differ",
                "`strip` leaves these bytes alone; prelink, patchelf and editors do not: compile it again",
            )


def loaded_digests(elf: Elf, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Returns the digests of the loaded bytes that the manifest must contain. The digests' own bytes count as zeros."""
    return elf.digests(manifest_place(elf, manifest))


def manifest_place(elf: Elf, manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the first byte of the digests in the file, and the byte after the last one."""
    at, data = elf.objects(OBJECTS)["collc_manifest"]
    first, last = blank_digests(data, manifest["loaded"], elf.path)
    return at + first, at + last


def check_allocation(document: PlanFile, held: Allocation, claims: Mapping[str, Any], target: str, path: Path) -> None:
    """Checks the plans and programs of an allocation, what the manifest says about each, and that they agree.

    Raises:
        RunError, CertificateError, IRError: a claim does not hold.
    """
    verify_document(document)
    _check_graph(held, document.graph, path)
    rows = claims["programs"]
    if len(rows) != len(held.programs):
        raise RunError(f"its manifest does not list its {len(held.programs)} programs", where=str(path))
    proved: set[tuple[object, ...]] = set()
    for program, rule, row in zip(held.programs, held.when, rows, strict=True):
        if row["plan_number"] >= len(document.plans):
            raise RunError("its manifest gives a program a plan that it does not hold", where=str(path))
        plan = document.plans[row["plan_number"]]
        try:
            _check_row(plan, program, rule, row, document.graph.nranks, target)
            # Programs that differ only in chunk sizes have the same steps. The proof of the first one holds for all.
            same = (id(program.channels), row["plan_number"], row["everywhere"], row["spread"])
            if same not in proved:
                verify(program)
                if program.in_switch:
                    check_follows_switch(program, plan, document.graph, _SLACK)
                elif row["everywhere"]:
                    check_everywhere(program, plan, row["spread"])
                else:
                    check_follows(program, plan, document.graph)
                _check_classes(program, document.graph)
                proved.add(same)
            if not row["everywhere"] and program.nranks > 1 and not program.in_switch:
                _check_spread(program, plan, row["spread"], document.graph)
        except IRError as error:
            label = plan.collective.with_root(plan.root)
            raise IRError(f"{label}: {error}", where=str(path)) from None
    _check_order(held.programs, held.when, path)


def _check_graph(held: Allocation, graph: PlanGraph, path: Path) -> None:
    """Checks that the tables have the links of the plans' graph and the servers of its ranks, in order of ranks."""
    names = graph.rank_servers
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    if held.servers != tuple(number[name] for name in names):
        raise RunError("its tables put ranks on other servers than its plans", where=str(path))
    if held.links != tuple((link.src, link.dst, link.kind, mbps(link.gbps)) for link in graph.links):
        raise RunError("its tables have other links than its plans", where=str(path))


def _check_classes(program: Program, graph: PlanGraph) -> None:
    """Checks that every FIFO has the slowest class of the links of its routes."""
    for fifo in program.fifos:
        kinds = [graph.links[link].kind for route in fifo.routes for link in route]
        if fifo.link is not max(kinds, key=CLASSES.index):
            raise IRError(f"FIFO {fifo.index} is not of the class of its slowest link")


def _check_row(plan: Plan, program: Program, rule: When, row: Mapping[str, Any], nranks: int, target: str) -> None:
    """Checks that the row of a program in the manifest agrees with the tables and the plan."""
    spend(sum(len(steps) for channel in program.channels for steps in channel.steps))
    if (program.collective, program.root, program.nranks) != (plan.collective, plan.root, nranks):
        raise IRError("its program is for another collective, root or number of ranks")
    truth = {
        "collective": plan.collective.value,
        "root": plan.root,
        **claims_of(plan, program),
        "channels": len(program.channels),
        "fifos": len(program.fifos),
        "links": link_counts(program),
        "lags": program.lags,
        "proto": rule.protocol,
        "chunk_bytes": program.chunk_bytes,
        "min_bytes": rule.min_bytes,
    }
    if program.weights or "weights" in row:
        truth["weights"] = dict(zip(JOINT, program.weights, strict=False))
    for name, value in truth.items():
        if row.get(name) != value:
            raise IRError(f"the manifest says {name} {row.get(name)!r}, the library holds {value!r}")
    if target == "host" and rule.protocol != "Simple":
        raise IRError(f"the host target has no protocol {rule.protocol}")
    if target == "host" and program.takes_turns:
        raise IRError("no shares take turns in a FIFO of the host target")
    if target == "cuda" and any(s.send or program.collective is not Collective.ALL_REDUCE for s in program.own_behind):
        raise IRError("kernels reduce their own input behind another's in all_reduces alone, and send nothing of it on")


def claims_of(plan: Plan, program: Program) -> dict[str, Any]:
    """Returns what a manifest says about the plan of a program, or about `plan.in_switch` if the program runs it.

    A program whose ranks all reduce all inputs moves more data than its plan, so it has no rate and bound.
    """
    made = plan.in_switch if program.in_switch else None
    proven = None if program.own_behind else plan if made is None else made
    return {
        "rate_gbps": None if proven is None or proven.rate is None else str(proven.rate),
        "bound_gbps": None if proven is None or proven.bound is None else str(proven.bound),
        "optimal": proven is not None and proven.optimal,
        "plan": plan.kind if made is None else IN_SWITCH,
        "trees": len(plan.trees if made is None else made.heads),
    }


def link_counts(program: Program) -> dict[str, int]:
    """Returns the number of FIFOs over links of each class, fastest first."""
    counts = Counter(fifo.link for fifo in program.fifos)
    return {kind.value: counts[kind] for kind in CLASSES if counts[kind]}


def _check_order(programs: Sequence[Program], when: Sequence[When], path: Path) -> None:
    """Checks that every collective and root has a program for every size: the first from 0 bytes on, then ascending.

    Programs inside a switch come after these. Not every machine runs them, so they may start above 0 bytes.
    """
    last: dict[tuple[str, int | None, bool], int | None] = {}
    for program, rule in zip(programs, when, strict=True):
        key = (program.collective.value, program.root, program.in_switch)
        if key not in last and (program.in_switch and (*key[:2], False) not in last):
            raise RunError(f"its first program of {key[0]} needs a switch", where=str(path))
        if key not in last and rule.min_bytes != 0 and not program.in_switch:
            raise RunError(f"its first program of {key[0]} is not for all sizes", where=str(path))
        before = last.get(key)
        if key in last and rule.min_bytes is not None and (before is None or rule.min_bytes <= before):
            raise RunError(f"its programs of {key[0]} are not in the order of their sizes", where=str(path))
        last[key] = rule.min_bytes


def check_follows(program: Program, plan: Plan, graph: PlanGraph) -> None:
    """Checks that each tree of the plan carries the fraction of every block that its weight says.

    In a program of several path classes, it is the fraction of the part of the block that the tree's class carries.

    Data must use the links of the tree's hops. Shares of trees that were split, and interleaved shares, add up. Partial
    results must be reduced in the order of the tree's hops, after the rank's own input.

    Raises:
        IRError: the program does not follow the plan.
    """
    if not plan.collective.uses_trees:
        raise IRError("programs run along trees, and its plan has flows")
    if program.nranks == 1:
        return
    per_root = plan.collective.per_rank
    scale = common_denominator(chain((tree.weight for tree in plan.trees), (s.hi - s.lo for s in program.shares)))
    wanted: dict[tuple[Carried, Edges, Edges], int] = defaultdict(int)  # in units of 1/scale
    whole: dict[Carried, int] = defaultdict(int)
    for tree in plan.trees:
        part = _part_of(tree, graph) if program.weights else 0
        if program.weights and not program.weights[part]:
            continue
        block = (part, tree.root if per_root else 0)
        up, down = _hops(tree.reduce), _hops(tree.broadcast)
        wanted[block, _in_order(up), _any_order(down)] += int(tree.weight * scale)
        whole[block] += int(tree.weight * scale)
    found: dict[tuple[Carried, Edges, Edges], int] = defaultdict(int)
    for share, (up, down) in zip(program.shares, edges(program), strict=True):
        block = (share.part, share.block)
        found[block, _in_order(up), _any_order(down)] += int((share.hi - share.lo) * scale)
    slack = _SLACK * (len(program.shares) + len(plan.trees))
    for key in {**wanted, **found}:
        if abs(Fraction(found[key], scale) - Fraction(wanted[key], whole.get(key[0], 1))) > slack:
            of = f"of what {JOINT[key[0][0]]} carries of block" if program.weights else "of block"
            raise IRError(f"{of} {key[0][1]} another part moves along a tree than its weight in the plan says")
    if program.own_behind:
        raise IRError("a rank reduces its own input behind another's")


def _part_of(tree: Tree, graph: PlanGraph) -> int:
    """Returns the number of the path class of a tree."""
    hops = (*tree.reduce, *tree.broadcast)
    name = joint_class([graph.links[link].kind for link in hop.links] for hop in hops)
    if name not in JOINT:
        raise IRError(f"a tree of its plan changes class on the way ({name})")
    return JOINT.index(name)


def _check_spread(program: Program, plan: Plan, spread: int, graph: PlanGraph) -> None:
    """Checks the manifest's number of trees after splitting: one share each, unless trees are too thin for a share."""
    weights = program.weights
    trees = sum(1 for tree in plan.trees if not weights or weights[_part_of(tree, graph)])
    rings = sum(tree.root == plan.trees[0].root for tree in plan.trees)
    wanted = trees * max(1, spread // max(rings, 1)) if plan.kind in RINGS else max(spread, trees)
    thin = any(tree.weight * (1 << 20) < (plan.rate or 0) / program.nranks for tree in plan.trees)
    if len(program.shares) != wanted and not thin:
        raise IRError(f"the manifest says spread {spread}, the library holds {len(program.shares)} shares")


def check_everywhere(program: Program, plan: Plan, spread: int) -> None:
    """Checks a program whose ranks all reduce all inputs.

    It must be an all_reduce. Every rank must send its whole input to every other rank along a hop of the plan, nothing
    else may move, and all ranks must reduce each share in the order of the ranks.

    Args:
        spread: the number of shares; 0 means 1.

    Raises:
        IRError: the program is another one.
    """
    if len(program.shares) != max(1, spread):
        raise IRError(f"it has {len(program.shares)} shares, its manifest says {spread}")
    ranks = range(program.nranks)
    spend(4 * program.nranks**2 * len(program.shares))
    pairs = sorted((a, b) for a in ranks for b in ranks if a != b)
    hops = {hop for tree in plan.trees for hop in _hops((*tree.reduce, *tree.broadcast))}
    if program.collective is not Collective.ALL_REDUCE:
        raise IRError("its ranks do not hand each other their whole inputs")
    for up, down in edges(program):
        if sorted((src, dst) for src, dst, _ in up) != pairs or down or not hops.issuperset(up):
            raise IRError("its ranks do not hand each other their whole inputs")
    for rank, step in ((r, s) for channel in program.channels for r, steps in enumerate(channel.steps) for s in steps):
        order = [program.fifos[f].src for f in step.recv]
        if step.reduces and [*order[: step.input_at], rank, *order[step.input_at :]] != list(ranks):
            raise IRError("its ranks do not reduce in the order of the ranks")


def _hops(hops: Sequence[Hop]) -> list[Edge]:
    spend(sum(4 + len(hop.links) for hop in hops))
    return [(hop.src, hop.dst, hop.links) for hop in hops]


def _in_order(edges: Sequence[Edge]) -> Edges:
    """Returns for each receiver its sources and their routes, in order."""
    found: dict[int, list[tuple[int, Route]]] = defaultdict(list)
    for src, dst, route in edges:
        found[dst].append((src, route))
    return frozenset((dst, tuple(sources)) for dst, sources in found.items())


def _any_order(edges: Sequence[Edge]) -> Edges:
    return frozenset((dst, ((src, route),)) for src, dst, route in edges)


def edges(program: Program) -> list[tuple[list[Edge], list[Edge]]]:
    """Returns for each share the edges of partial and of finished results. Each receiver's edges are in its order."""
    found: list[tuple[list[Edge], list[Edge]]] = [([], []) for _ in program.shares]
    ways = {(f, d): way for f, fifo in enumerate(program.fifos) for d, way in zip(fifo.dsts, fifo.routes, strict=False)}
    finished: dict[int, bool] = {}
    for channel in program.channels:
        for steps in channel.steps:
            finished |= {f: s.output or not (s.input and program.collective.reduces) for s in steps for f in s.send}
    for channel in program.channels:
        for rank, steps in enumerate(channel.steps):
            for step in steps:
                for f in step.recv:
                    found[step.share][finished[f]].append((program.fifos[f].src, rank, ways.get((f, rank), ())))
    return found
