"""Every decision of code generation: programs -> the rows of the step tables. The template only prints them.

The rows mirror the structs of templates/include/collc/tables.h. `STRUCTS` is the one description of their layout: the
generated source asserts it against the header, and `collc.build.readback` decodes a built library with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from collc.ir.nodes import Fifo, Program, Step
from collc.ir.printer import print_step
from collc.packing.gpu_sets import GpuSets

# Program.protocol.
PROTOCOLS: dict[str, int] = {"Simple": 0, "LL": 1, "LL128": 2}

# Program.min_bytes of a program that only a tuning file chooses.
NEVER = (1 << 64) - 1

FLAG_INPUT, FLAG_OUTPUT, FLAG_FINAL = 1, 2, 4

# C++ struct -> its fields in order with their `struct` codes (little endian, naturally aligned, no hidden padding).
STRUCTS: dict[str, tuple[tuple[str, str], ...]] = {
    "Allocation": (
        ("nranks", "I"),
        ("first_fifo", "I"),
        ("nfifos", "I"),
        ("first_program", "I"),
        ("nprograms", "I"),
        ("slots", "I"),
        ("slot_bytes", "I"),
        ("reserved", "I"),
    ),
    "Program": (
        ("min_bytes", "Q"),
        ("collective", "I"),
        ("root", "i"),
        ("first_share", "I"),
        ("nshares", "I"),
        ("first_rank_channel", "I"),
        ("nchannels", "I"),
        ("max_lag", "I"),
        ("chunk_bytes", "I"),
        ("protocol", "I"),
        ("reserved", "I"),
    ),
    "Share": (("lo_num", "Q"), ("hi_num", "Q"), ("den", "Q"), ("block", "I"), ("reserved", "I")),
    "RankChannel": (("first_step", "I"), ("nsteps", "I")),
    "Step": (
        ("first_ref", "I"),
        ("share", "I"),
        ("lag", "H"),
        ("nrecv", "H"),
        ("nsend", "H"),
        ("flags", "B"),
        ("input_at", "B"),
    ),
    "FifoRef": (("fifo", "I"), ("reader", "I")),
    "Fifo": (("src", "I"), ("first_reader", "I"), ("nreaders", "I")),
    "Reader": (("rank", "I"),),
    "GpuSet": (("nranks", "I"), ("first", "I"), ("allocation", "I"), ("reserved", "I")),
    "Number": (("value", "I"),),
}

# Exported array -> (its struct, the C++ type of an element).
ARRAYS: dict[str, tuple[str, str]] = {
    "collc_allocations": ("Allocation", "collc::Allocation"),
    "collc_programs": ("Program", "collc::Program"),
    "collc_shares": ("Share", "collc::Share"),
    "collc_rank_channels": ("RankChannel", "collc::RankChannel"),
    "collc_steps": ("Step", "collc::Step"),
    "collc_refs": ("FifoRef", "collc::FifoRef"),
    "collc_fifos": ("Fifo", "collc::Fifo"),
    "collc_fifo_readers": ("Reader", "uint32_t"),
    "collc_gpu_sets": ("GpuSet", "collc::GpuSet"),
    "collc_set_gpus": ("Number", "uint32_t"),
    "collc_set_ranks": ("Number", "uint32_t"),
    "collc_gpu_classes": ("Number", "uint32_t"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: its numbers and what it means, for the reader of the generated file."""

    cells: str
    comment: str


@dataclass(frozen=True, slots=True)
class Table:
    """One array of the generated source. `count` is 0 where only a filler row is printed (C++ has no empty array)."""

    symbol: str
    element: str
    count: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class StructLayout:
    """What a static_assert says about a struct."""

    element: str
    size: int
    fields: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Everything that templates/tables.cpp.j2 needs."""

    version: str
    fingerprint: str
    layouts: tuple[StructLayout, ...]
    tables: tuple[Table, ...]
    nallocations: int
    ngpu_sets: int
    ngpus: int
    name_rows: tuple[str, ...]
    manifest_rows: tuple[str, ...]
    manifest_size: int
    plan_rows: tuple[str, ...]
    plan_size: int


class When(NamedTuple):
    """From how many bytes a program runs (None: only where a tuning file says so), and over which protocol."""

    min_bytes: int | None = 0
    protocol: str = "Simple"


ALWAYS = When()


class TableBuilder:
    """Collects the rows of all allocations of a library."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {symbol: [] for symbol in ARRAYS}

    def add_allocation(
        self, programs: Sequence[Program], *, slot_bytes: int, when: Sequence[When] | None = None
    ) -> None:
        """Adds one set of ranks with its programs. FIFOs of different programs that join the same ranks are shared.

        Programs that share the objects of their shares, FIFOs and channels, and so differ in chunks alone, share rows.

        Args:
            when: parallel to `programs`; default: each from 0 bytes on.
        """
        first_fifo, first_program = len(self.rows["collc_fifos"]), len(self.rows["collc_programs"])
        numbers: dict[tuple[int, tuple[int, ...], int], int] = {}
        places: dict[tuple[int, int, int], tuple[int, int]] = {}
        for program, rule in zip(programs, when or [ALWAYS] * len(programs), strict=True):
            same = (id(program.shares), id(program.fifos), id(program.channels))
            if same not in places:
                places[same] = self._add_steps(program, numbers)
            self._add_program(program, rule, *places[same])
        nranks = programs[0].nranks
        slots = {program.slots for program in programs}
        assert len(slots) == 1, "the FIFOs of an allocation are shared, so all its programs have the same slots"
        self._append(
            "collc_allocations",
            (nranks, first_fifo, len(numbers), first_program, len(programs), slots.pop(), slot_bytes, 0),
            f"{nranks} ranks, {len(numbers)} FIFOs",
        )

    def add_gpu_sets(self, sets: GpuSets) -> None:
        """Adds which GPU sets run which allocation; allocations count in the order in which they were added."""
        for name, number in zip(sets.names, sets.classes, strict=True):
            self._append("collc_gpu_classes", (number,), f"class of GPU {sets.names.index(name)}")
        for one in sets.sets:
            first = len(self.rows["collc_set_gpus"])
            text = ",".join(map(str, one.gpus))
            self._append("collc_gpu_sets", (len(one.gpus), first, one.allocation, 0), f"GPUs {text}")
            for gpu, rank in zip(one.gpus, one.ranks, strict=True):
                self._append("collc_set_gpus", (gpu,), f"GPU {gpu} of {text}")
                self._append("collc_set_ranks", (rank,), f"is rank {rank}")

    def counts(self) -> dict[str, int]:
        return {symbol: len(rows) for symbol, rows in self.rows.items()}

    def tables(self) -> tuple[Table, ...]:
        made = []
        for symbol, (struct, element) in ARRAYS.items():
            rows = self.rows[symbol]
            filler = [Row(_cells(struct, [0] * len(STRUCTS[struct])), "unused")]
            made.append(Table(symbol, element, len(rows), tuple(rows or filler)))
        return tuple(made)

    def _append(self, symbol: str, values: Iterable[int], comment: str) -> None:
        struct = ARRAYS[symbol][0]
        numbers = list(values)
        assert len(numbers) == len(STRUCTS[struct])
        for value, (_, code) in zip(numbers, STRUCTS[struct], strict=True):
            assert value < 1 << {"B": 8, "H": 16, "I": 32, "i": 31, "Q": 64}[code], (symbol, value)
        self.rows[symbol].append(Row(_cells(struct, numbers), comment))

    def _add_steps(self, program: Program, numbers: dict[tuple[int, tuple[int, ...], int], int]) -> tuple[int, int]:
        """Adds what a program does; returns its first share and its first rank channel."""
        first_share = len(self.rows["collc_shares"])
        for i, share in enumerate(program.shares):
            den = math.lcm(share.lo.denominator, share.hi.denominator)
            cells = (int(share.lo * den), int(share.hi * den), den, share.block, 0)
            self._append("collc_shares", cells, f"share {i}: block {share.block} [{share.lo}, {share.hi})")
        for fifo in program.fifos:
            self._number(fifo, numbers)
        first_rank_channel = len(self.rows["collc_rank_channels"])
        for rank in range(program.nranks):
            for c, channel in enumerate(program.channels):
                steps = channel.steps[rank]
                first_step = len(self.rows["collc_steps"])
                self._append("collc_rank_channels", (first_step, len(steps)), f"rank {rank}, channel {c}")
                for step in steps:
                    self._add_step(program, rank, step, numbers)
        return first_share, first_rank_channel

    def _add_program(self, program: Program, rule: When, first_share: int, first_rank_channel: int) -> None:
        lags = [step.lag for channel in program.channels for steps in channel.steps for step in steps]
        root = -1 if program.root is None else program.root
        name = program.collective.value + ("" if program.root is None else f" from rank {program.root}")
        if rule.min_bytes is None:
            name += ", by tuning only"
        elif rule.min_bytes:
            name += f", {rule.min_bytes} bytes and more"
        self._append(
            "collc_programs",
            (
                NEVER if rule.min_bytes is None else rule.min_bytes,
                program.collective.traits.number,
                root,
                first_share,
                len(program.shares),
                first_rank_channel,
                len(program.channels),
                max(lags, default=0),
                program.chunk_bytes,
                PROTOCOLS[rule.protocol],
                0,
            ),
            name,
        )

    def _number(self, fifo: Fifo, numbers: dict[tuple[int, tuple[int, ...], int], int]) -> None:
        key = (fifo.src, fifo.dsts, fifo.index)
        if key in numbers:
            return
        numbers[key] = len(numbers)
        first_reader = len(self.rows["collc_fifo_readers"])
        readers = ", ".join(map(str, fifo.dsts))
        self._append(
            "collc_fifos", (fifo.src, first_reader, len(fifo.dsts)), f"fifo {numbers[key]}: {fifo.src} -> {readers}"
        )
        for dst in fifo.dsts:
            self._append("collc_fifo_readers", (dst,), f"fifo {numbers[key]}")

    def _add_step(
        self, program: Program, rank: int, step: Step, numbers: dict[tuple[int, tuple[int, ...], int], int]
    ) -> None:
        first_ref = len(self.rows["collc_refs"])
        for f in (*step.recv, *step.send):
            fifo = program.fifos[f]
            number = numbers[fifo.src, fifo.dsts, fifo.index]
            reader = fifo.dsts.index(rank) if f in step.recv else 0
            way = f"receive from rank {fifo.src}" if f in step.recv else f"send to {', '.join(map(str, fifo.dsts))}"
            self._append("collc_refs", (number, reader), way)
        final = FLAG_FINAL if step.reduces and step.output else 0
        flags = (FLAG_INPUT if step.input else 0) | (FLAG_OUTPUT if step.output else 0) | final
        cells = (first_ref, step.share, step.lag, len(step.recv), len(step.send), flags, step.input_at)
        self._append("collc_steps", cells, f"rank {rank}: {print_step(step)}")


def _cells(struct: str, values: Iterable[int]) -> str:
    """The initialiser of a row; only the collective is an enum in C++, and only NEVER does not fit a signed literal."""
    names = (name for name, _ in STRUCTS[struct])
    texts = (f"{v}u" if v == NEVER else str(v) for v in values)
    return ", ".join(
        f"collc::Collective({v})" if name == "collective" else v for name, v in zip(names, texts, strict=True)
    )


_SIZES = {"B": 1, "H": 2, "I": 4, "i": 4, "Q": 8}


def layouts() -> tuple[StructLayout, ...]:
    """Size and field offsets of every struct, for static_asserts."""
    made = []
    for name, element in dict(ARRAYS.values()).items():
        offsets, at = [], 0
        for field_name, code in STRUCTS[name]:
            assert at % _SIZES[code] == 0
            offsets.append((field_name, at))
            at += _SIZES[code]
        made.append(StructLayout(element, at, tuple(offsets) if element.startswith("collc::") else ()))
    return tuple(made)
