"""Turns the arrays of all ranks into the buffers of one call, counted as NCCL counts, and the outputs into arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collc.api.arguments import some
from collc.collectives.blocks import block_layout, buffer_counts
from collc.collectives.model import Collective
from collc.errors import UsageError

Array = npt.NDArray[Any]

# NCCL's numbers of types, by numpy's names. bfloat16 is the type of the package ml_dtypes.
DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}


@dataclass(frozen=True)
class Buffers:
    """Flat arrays of all ranks in NCCL's layout.

    Attributes:
        count: the number of elements as NCCL counts them: of one rank's part if a buffer has a part for each rank.
        inputs: contiguous arrays that are never written.
        outputs: one array for every rank.
        gives: the ranks whose output is a result.
        shape: the shape of a result.
    """

    count: int
    inputs: list[Array]
    outputs: list[Array]
    gives: frozenset[int]
    shape: tuple[int, ...]

    def results(self) -> list[Array | None]:
        """Returns the outputs in their shape; None for ranks without a result."""
        return [out.reshape(self.shape) if rank in self.gives else None for rank, out in enumerate(self.outputs)]


def lay_out(collective: Collective, nranks: int, root: int | None, inputs: object) -> Buffers:
    """Returns the buffers of a call on one array per rank.

    All inputs have one shape and type. If a rank's input has a part for each rank, its first dimension is divided by
    the number of ranks. If its output has, the first dimension of the result is multiplied by it.

    Raises:
        UsageError: the arrays do not fit together.
    """
    given = some("inputs", inputs, "arrays, one per rank")
    if len(given) != nranks:
        raise UsageError(f"{len(given)} arrays for {nranks} ranks", where="inputs", hint="give one array per rank")
    layout = block_layout(collective, nranks, root)
    arrays = {}
    for rank, value in enumerate(given):
        if layout.in_blocks[rank]:
            arrays[rank] = _array(rank, value)
        elif value is not None:
            raise UsageError("this rank has no input", where=f"inputs[{rank}]", hint="give None")
    first = arrays[min(arrays)]
    for rank, array in arrays.items():
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            found = f"{array.dtype} {array.shape} differs from {first.dtype} {first.shape} of rank {min(arrays)}"
            raise UsageError(found, where=f"inputs[{rank}]", hint="all ranks give the same shape and type")
    parts_in, parts_out = buffer_counts(collective, nranks)
    shape = first.shape or (1,)
    if shape[0] % parts_in:
        hint = f"the first dimension holds a part for each of {nranks} ranks"
        raise UsageError(f"{shape[0]} rows cannot be divided by {nranks}", where="inputs", hint=hint)
    result = (shape[0] // parts_in * parts_out, *shape[1:]) if parts_in != parts_out else first.shape
    flat = {rank: array.reshape(-1) for rank, array in arrays.items()}
    size = first.size // parts_in * parts_out
    return Buffers(
        first.size // parts_in,
        [flat[rank] if rank in flat else np.zeros(first.size, first.dtype) for rank in range(nranks)],
        [np.zeros(size, first.dtype) for _ in range(nranks)],
        frozenset(rank for rank in range(nranks) if layout.out_blocks[rank]),
        result,
    )


def _array(rank: int, value: object) -> Array:
    where = f"inputs[{rank}]"
    if value is None:
        raise UsageError("this rank needs an input", where=where)
    try:
        array: Array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"is no array: {error}", where=where) from None
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        known = ", ".join(DTYPES)
        raise UsageError(
            f"elements are {array.dtype.str or array.dtype}", where=where, hint=f"convert to one of {known}"
        )
    return np.require(array, requirements=["C", "A"])
