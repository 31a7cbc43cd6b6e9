"""Test data whose results are exact in every type, and these results, computed without any library.

Inputs are small integers, chosen for each operation so that every partial result is exact in every order of reduction.
So no tolerance is needed. bf16 represents integers up to 256 exactly, f16 up to 2048.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collc.collectives.blocks import block_layout, buffer_counts
from collc.collectives.model import Collective
from collc.errors import UsageError

Array = npt.NDArray[Any]

# Inputs repeat with this period. It is prime, so that a shift by a power of two, such as a chunk, changes the data.
PERIOD = 8191


@dataclass(frozen=True)
class DataType:
    """A type by nccl-tests' name, with NCCL's number and the numpy type for its bits."""

    name: str
    number: int
    carrier: str
    mantissa_bits: int | None = None  # None for integers

    @property
    def size(self) -> int:
        """The bytes of an element."""
        return np.dtype(self.carrier).itemsize


TYPES: dict[str, DataType] = {
    t.name: t
    for t in (
        DataType("int8", 0, "i1"),
        DataType("uint8", 1, "u1"),
        DataType("int32", 2, "i4"),
        DataType("uint32", 3, "u4"),
        DataType("int64", 4, "i8"),
        DataType("uint64", 5, "u8"),
        DataType("half", 6, "f2", 10),
        DataType("float", 7, "f4", 23),
        DataType("double", 8, "f8", 52),
        DataType("bfloat16", 9, "u2", 7),
    )
}
OPS: dict[str, int] = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


def parse_names(text: str, known: dict[str, Any], what: str) -> list[str]:
    """Returns the names in a text: `all`, one name, or several names separated by commas.

    Args:
        what: the noun for errors.

    Raises:
        UsageError: a name is unknown.
    """
    if text == "all":
        return list(known)
    names = text.split(",")
    for name in names:
        if name not in known:
            raise UsageError(f"no {what} is called {name!r}", hint=f"one of: {', '.join(known)}, all")
    return names


def values(rank: int, nranks: int, op: str, signed: bool) -> Array:
    """Returns one period of a rank's input as int64."""
    i: Array = np.arange(PERIOD, dtype=np.int64)
    mixed: Array = (i * 2654435761 + rank * 40503 + 12345) % 65521
    if op == "sum":
        # The sum is at most 240 for up to 16 ranks, and at most 1 per rank beyond, so it is exact in bf16.
        return mixed % (16 if nranks <= 16 else 2)
    if op == "prod":
        # Each element has ones, at most six twos, and signs if the type has them.
        twos = np.where((i + rank) % max(nranks, 6) < 6, 1 + mixed % 2, 1)
        return np.where(mixed % 3 == 0, -twos, twos) if signed else twos
    if op in ("max", "min"):
        return mixed % 200 - 100 if signed else mixed % 200
    if op == "avg":
        # One rank per element has nranks, the others 0: the sum stays below 128 for up to 127 ranks.
        return np.where(i % nranks == rank, nranks, 0)
    return mixed % 128


def nearest(number: float, mantissa_bits: int) -> float:
    """Returns the number of a float type that is nearest to a positive number; of two, the even one."""
    ulp = 2.0 ** (math.floor(math.log2(number)) - mantissa_bits)
    return round(number / ulp) * ulp


def mean_of_one(nranks: int, mantissa_bits: int) -> float:
    """Returns the average over `nranks` ranks if one rank has `nranks` and the others have 0.

    Floats are multiplied by the rounded inverse of the number of ranks, as NCCL does, so the result may differ from 1.
    """
    return nearest(nranks * nearest(1 / nranks, mantissa_bits), mantissa_bits)


def encode(numbers: Array, kind: DataType) -> Array:
    """Returns the bits of numbers that a type represents exactly."""
    if kind.name == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="raise"):
        return numbers.astype(kind.carrier)


def combined(nranks: int, op: str, kind: DataType) -> Array:
    """Returns the bits of one period of the reduction over all ranks."""
    signed = kind.carrier[0] != "u" or kind.mantissa_bits is not None
    inputs = np.stack([values(rank, nranks, op, signed) for rank in range(nranks)])
    result: Array
    match op:
        case "sum":
            result = inputs.sum(axis=0)
        case "prod":
            result = inputs.prod(axis=0)
        case "max":
            result = inputs.max(axis=0)
        case "min":
            result = inputs.min(axis=0)
        case _:
            result = inputs.sum(axis=0) // nranks
            if kind.mantissa_bits is not None:
                result = result * mean_of_one(nranks, kind.mantissa_bits)
    if kind.mantissa_bits is None:
        return result.astype(kind.carrier)  # integers wrap, as in hardware
    return encode(result, kind)


def period_of(rank: int, nranks: int, op: str | None, kind: DataType) -> Array:
    """Returns the bits of one period of a rank's input. `op` is None for collectives that only move data."""
    signed = kind.carrier[0] != "u" or kind.mantissa_bits is not None
    return encode(values(rank, nranks, op or "none", signed), kind)


def fill(period: Array, count: int, offset: int = 0) -> Array:
    """Returns `count` elements of a repeated period, starting at element `offset`."""
    start = offset % PERIOD
    return np.resize(np.roll(period, -start), count) if count else period[:0]


@dataclass(frozen=True)
class Case:
    """One call to check. Sizes are in elements, as NCCL counts them."""

    collective: Collective
    nranks: int
    root: int
    count: int
    kind: DataType
    op: str | None

    @property
    def send_elements(self) -> int:
        """The number of elements in a rank's input."""
        return self.count * buffer_counts(self.collective, self.nranks)[0]

    @property
    def recv_elements(self) -> int:
        """The number of elements in a rank's output."""
        return self.count * buffer_counts(self.collective, self.nranks)[1]

    def send_data(self, rank: int) -> Array:
        """Returns the data that a rank sends."""
        return fill(period_of(rank, self.nranks, self.op, self.kind), self.send_elements)

    def expected(self, rank: int) -> Array | None:
        """Returns the data that a rank must receive, or None if the call must not write its output."""
        layout = block_layout(self.collective, self.nranks, self.root if self.collective.rooted else None)
        blocks = sorted(layout.out_blocks[rank].items(), key=lambda held: held[1])
        return np.concatenate([self._block(block) for block, _ in blocks]) if blocks else None

    def _block(self, block: int) -> Array:
        """Returns a finished block: the reduction of all ranks' inputs, or the data of its owner."""
        layout = block_layout(self.collective, self.nranks, self.root if self.collective.rooted else None)
        owner = next(rank for rank in range(self.nranks) if block in layout.in_blocks[rank])
        at = layout.in_blocks[owner][block] * self.count
        if self.collective.reduces:
            return fill(combined(self.nranks, self.op or "sum", self.kind), self.count, at)
        return fill(period_of(owner, self.nranks, None, self.kind), self.count, at)
