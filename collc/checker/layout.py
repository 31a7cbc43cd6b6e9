"""The byte layout of the step tables, which the compiler writes, the runtime maps and the checker reads.

A library exports one object, `collc_tables`: a `TablesHeader` of templates/include/collc/tables.h, then the arrays in
the order of `ARRAYS`, each at the next address with the alignment of its rows. The object has no pointers, so the
loader changes nothing in it. The header starts with a digest of all bytes after the digest, and with the size of the
object. Then it has the first byte and the number of rows of each array. The generated source asserts that this layout
agrees with the header file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import starmap
from typing import NamedTuple

from collc.topology.model import CLASSES, LinkKind

# The values of Program.protocol.
PROTOCOLS: dict[str, int] = {"Simple": 0, "LL": 1, "LL128": 2}

# The values of Fifo.link and GraphLink.kind, from the fastest to the slowest. None: the program has no graph.
LINKS: dict[LinkKind | None, int] = {kind: number for number, kind in enumerate((None, *CLASSES))}


def mbps(gbps: Fraction) -> int:
    """Returns the value of GraphLink.mbps for a speed in GB/s: MB/s, rounded, at least 1 and at most 32 bits."""
    return min(max(round(gbps * 1000), 1), (1 << 32) - 1)


# The value of Program.min_bytes for a program that only a tuning file chooses.
NEVER = (1 << 64) - 1

FLAG_INPUT, FLAG_OUTPUT, FLAG_FINAL = 1, 2, 4
# Flags of steps at a switch, which adds up the data that the step receives, or copies the data that it sends.
FLAG_SWITCH_SUM, FLAG_SWITCH_COPY = 8, 16


def _fields(code: str, names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, code) for name in names.split())


# C++ struct -> its fields in order with their `struct` codes (little endian, naturally aligned, without padding).
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

# Array -> (struct of its rows, C++ type of its elements).
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
    "gpu_classes": ("Number", "uint32_t"),  # the class of every GPU, state by state
    "vertex_names": ("Character", "uint8_t"),  # names of the machine's vertices in UTF-8, GPUs first, zero-terminated
    # These arrays are empty unless the library survives losses.
    "machine_vertices": ("Number", "uint32_t"),  # the kind of each vertex, GPUs first
    "machine_links": ("MachineLink", "collc::MachineLink"),
    "states": ("State", "collc::State"),
    "changes": ("Change", "collc::Change"),
    "gpu_buses": ("BusId", "uint64_t"),  # the bus id of every GPU, if the topology has bus ids
    "cards": ("Card", "collc::Card"),  # the NICs of a plan over several servers
}

FIRST_BYTE = 8  # the first byte that the digest covers
HEADER_BYTES = 16 + 8 * len(ARRAYS)
MOST_BYTES = 1 << 31


class When(NamedTuple):
    """The smallest message in bytes that a program serves (None: only a tuning file chooses it), and its protocol."""

    min_bytes: int | None = 0
    protocol: str = "Simple"


ALWAYS = When()


def row_layout(array: str) -> struct.Struct:
    """Returns the memory layout of a row of an array."""
    return struct.Struct("<" + "".join(code for _, code in STRUCTS[ARRAYS[array][0]]))


def places(counts: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Returns the first byte of each array, and the size of the object in bytes.

    An array without rows occupies one row of zeros.
    """
    found, at = {}, HEADER_BYTES
    for array, (name, _) in ARRAYS.items():
        alignment = max(struct.calcsize(code) for _, code in STRUCTS[name])
        found[array] = -(-at // alignment) * alignment
        at = found[array] + max(counts[array], 1) * row_layout(array).size
    return found, -(-at // 8) * 8


def extents(image: bytes) -> dict[str, tuple[int, int]]:
    """Returns (first byte, rows) of each array according to the header."""
    return dict(zip(ARRAYS, struct.iter_unpack("<II", image[16:HEADER_BYTES]), strict=True))


def digest(image: bytes) -> int:
    """Returns the digest that the header starts with. `table_digest` of the runtime computes the same.

    It detects damage, not forgery. Each step is a bijection, so it detects every change of a single word.

    Args:
        image: the object; its size is a multiple of 8 bytes.
    """
    value = 0xCBF29CE484222325
    for (word,) in struct.iter_unpack("<Q", image[FIRST_BYTE:]):
        value = (value ^ word) * 0x9E3779B97F4A7C15 & NEVER
        value = value >> 35 | value << 29 & NEVER
    return value


def pack(rows: Mapping[str, Iterable[Sequence[int]]]) -> bytes:
    """Returns the whole object with its digest."""
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
