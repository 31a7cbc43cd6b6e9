"""The step tables as bytes: what the compiler writes, the runtime maps and the checker reads.

A library exports one object, `collc_tables`: a `TablesHeader` of templates/include/collc/tables.h, then the arrays, in
the order of `ARRAYS`, each at the next address that its rows can lie at. It holds no pointers, so the loader changes
nothing in it. The header begins with a digest of all that follows it and the size of the object; then it says of each
array where it begins and how many rows it has. The generated source asserts this layout against the header file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import starmap
from typing import NamedTuple

from collc.topology.model import CLASSES, LinkKind

# Program.protocol.
PROTOCOLS: dict[str, int] = {"Simple": 0, "LL": 1, "LL128": 2}

# Fifo.link and GraphLink.kind, from the fastest to the slowest; None: made without a graph.
LINKS: dict[LinkKind | None, int] = {kind: number for number, kind in enumerate((None, *CLASSES))}


def mbps(gbps: Fraction) -> int:
    """GraphLink.mbps: a speed in MB/s, rounded, as far as it fits."""
    return min(max(round(gbps * 1000), 1), (1 << 32) - 1)


# Program.min_bytes of a program that only a tuning file chooses.
NEVER = (1 << 64) - 1

FLAG_INPUT, FLAG_OUTPUT, FLAG_FINAL = 1, 2, 4
# Of programs inside a switch: it adds up what the step receives, or copies what it sends.
FLAG_SWITCH_SUM, FLAG_SWITCH_COPY = 8, 16


def _fields(code: str, names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, code) for name in names.split())


# C++ struct -> its fields in order with their `struct` codes (little endian, naturally aligned, no hidden padding).
STRUCTS: dict[str, tuple[tuple[str, str], ...]] = {
    "Allocation": _fields(
        "I", "nranks first_fifo nfifos first_program nprograms slots slot_bytes first_server first_link nlinks"
    ),
    "Program": (
        *(("min_bytes", "Q"), ("collective", "I"), ("root", "i")),
        *_fields("I", "first_share nshares first_rank_channel nchannels chunk_bytes"),
        *_fields("B", "protocol nvlink_weight pcie_weight net_weight"),
    ),
    "Share": (*_fields("I", "lo_num hi_num den"), *_fields("H", "block part")),
    "RankChannel": _fields("I", "first_step nsteps"),
    "Step": (*_fields("I", "first_ref share"), *_fields("H", "lag nrecv nsend"), *_fields("B", "flags input_at")),
    "FifoRef": _fields("I", "fifo reader"),
    "Fifo": (*_fields("I", "src first_reader nreaders link slots"), *_fields("H", "turn turns")),
    "Reader": _fields("I", "rank"),
    "Route": _fields("I", "first nlinks"),
    "GraphLink": _fields("I", "src dst kind mbps"),
    "GpuSet": _fields("I", "nranks first allocation first_forwarder nforwarders"),
    "MachineLink": (*_fields("Q", "num den"), *_fields("H", "src dst"), *_fields("I", "kind")),
    "State": _fields("I", "first_set nsets first_change nchanges"),
    "Change": (*_fields("Q", "num den"), *_fields("I", "vertex number")),
    "Number": _fields("I", "value"),
    "BusId": _fields("Q", "bus"),
    "Card": (*_fields("Q", "bus name rest"), *_fields("I", "server network")),
    "Character": _fields("B", "byte"),
}

# Array -> (the struct of its rows, the C++ type of an element).
ARRAYS: dict[str, tuple[str, str]] = {
    "allocations": ("Allocation", "collc::Allocation"),
    "programs": ("Program", "collc::Program"),
    "shares": ("Share", "collc::Share"),
    "rank_channels": ("RankChannel", "collc::RankChannel"),
    "steps": ("Step", "collc::Step"),
    "refs": ("FifoRef", "collc::FifoRef"),
    "fifos": ("Fifo", "collc::Fifo"),
    "fifo_readers": ("Reader", "uint32_t"),
    "fifo_routes": ("Route", "collc::Route"),
    "route_links": ("Number", "uint32_t"),
    "links": ("GraphLink", "collc::GraphLink"),
    "rank_servers": ("Number", "uint32_t"),
    "gpu_sets": ("GpuSet", "collc::GpuSet"),
    "set_gpus": ("Number", "uint32_t"),
    "set_ranks": ("Number", "uint32_t"),
    "set_forwarders": ("Number", "uint32_t"),
    "gpu_classes": ("Number", "uint32_t"),  # of every GPU, state by state
    "vertex_names": ("Character", "uint8_t"),  # of the machine, GPUs first, UTF-8, each ended by a zero
    # Of libraries that survive losses; empty in others.
    "machine_vertices": ("Number", "uint32_t"),  # the kind of each, GPUs first
    "machine_links": ("MachineLink", "collc::MachineLink"),
    "states": ("State", "collc::State"),
    "changes": ("Change", "collc::Change"),
    "gpu_buses": ("BusId", "uint64_t"),  # of every GPU, where the topology knows them
    "cards": ("Card", "collc::Card"),  # of a plan over several servers
}

FIRST_BYTE = 8  # of what the digest covers
HEADER_BYTES = 16 + 8 * len(ARRAYS)
MOST_BYTES = 1 << 31


class When(NamedTuple):
    """From how many bytes a program runs (None: only where a tuning file says so), and over which protocol."""

    min_bytes: int | None = 0
    protocol: str = "Simple"


ALWAYS = When()


def row_layout(array: str) -> struct.Struct:
    """How a row of an array lies in memory."""
    return struct.Struct("<" + "".join(code for _, code in STRUCTS[ARRAYS[array][0]]))


def places(counts: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """The first byte of each array, and the size of the object. An array without rows has one of zeros."""
    found, at = {}, HEADER_BYTES
    for array, (name, _) in ARRAYS.items():
        alignment = max(struct.calcsize(code) for _, code in STRUCTS[name])
        found[array] = -(-at // alignment) * alignment
        at = found[array] + max(counts[array], 1) * row_layout(array).size
    return found, -(-at // 8) * 8


def extents(image: bytes) -> dict[str, tuple[int, int]]:
    """(first byte, rows) of each array, as the header says."""
    return dict(zip(ARRAYS, struct.iter_unpack("<II", image[16:HEADER_BYTES]), strict=True))


def digest(image: bytes) -> int:
    """What the header begins with; `table_digest` of the runtime computes the same. `image` is a multiple of 8 bytes.

    Against damage, not against forgers: every step is a bijection, so that no change of one word goes unseen.
    """
    value = 0xCBF29CE484222325
    for (word,) in struct.iter_unpack("<Q", image[FIRST_BYTE:]):
        value = (value ^ word) * 0x9E3779B97F4A7C15 & NEVER
        value = value >> 35 | value << 29 & NEVER
    return value


def pack(rows: Mapping[str, Iterable[Sequence[int]]]) -> bytes:
    """The whole object, its digest in place."""
    data = {array: b"".join(starmap(row_layout(array).pack, rows[array])) for array in ARRAYS}
    counts = {array: len(data[array]) // row_layout(array).size for array in ARRAYS}
    at, size = places(counts)
    image = bytearray(size)
    struct.pack_into("<QQ", image, 0, 0, size)
    for i, array in enumerate(ARRAYS):
        struct.pack_into("<II", image, 16 + 8 * i, at[array], counts[array])
        image[at[array] : at[array] + len(data[array])] = data[array]
    struct.pack_into("<Q", image, 0, digest(bytes(image)))
    return bytes(image)
