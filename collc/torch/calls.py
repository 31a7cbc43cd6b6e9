"""Calls the library of a rank's communicator through ctypes, and maps tensors and operations to NCCL's."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import profiler

from collc.bench.nccl import Nccl, UniqueId
from collc.errors import RunError

_TYPES: dict[torch.dtype, int] = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.uint32: 3,
    torch.int64: 4,
    torch.uint64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
    torch.float8_e4m3fn: 10,
    torch.float8_e5m2: 11,
    torch.bool: 1,
}
_COMPLEX: dict[torch.dtype, int] = {torch.complex64: 7, torch.complex128: 8}  # two numbers each
BYTES = 1  # ncclUint8: tensors that are only moved and have no type of NCCL count in bytes
SUM, PRODUCT, MAX, MIN, AVG = range(5)
_OPS = {
    dist.ReduceOp.SUM: SUM,
    dist.ReduceOp.PRODUCT: PRODUCT,
    dist.ReduceOp.MAX: MAX,
    dist.ReduceOp.MIN: MIN,
    dist.ReduceOp.AVG: AVG,
}


class Communicator:
    """The communicator of one rank. Calls block until their buffers are done, and release the GIL."""

    def __init__(self, library: Path, nranks: int, rank: int, unique: bytes) -> None:
        self.nccl = Nccl(library)
        self.lib = self.nccl.lib
        self.comm = ctypes.c_void_p()
        value = UniqueId.from_buffer_copy(unique)
        self.check(self.lib.ncclCommInitRank(ctypes.byref(self.comm), nranks, value, rank), "ncclCommInitRank")

    def check(self, result: int, what: str) -> None:
        """Raises DistBackendError with the library's message if `result` is an error."""
        if result:
            try:
                self.nccl.check(result, what)
            except RunError as error:
                raise dist.DistBackendError(str(error)) from None

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(self.lib, name)
        with _traced(name):
            self.check(function(*arguments, self.comm, None), name)

    def end(self, *, abort: bool) -> None:
        """Destroys the communicator. With `abort`, also ends its running calls, here and on the other ranks."""
        comm, self.comm = self.comm, ctypes.c_void_p()
        if comm:
            name = "ncclCommAbort" if abort else "ncclCommDestroy"
            self.check(getattr(self.lib, name)(comm), name)


def _traced(name: str) -> AbstractContextManager[object]:
    """Returns a context that records an event such as `collc::ncclAllReduce` if torch.profiler runs.

    The profiler must profile all threads to show it.
    """
    # record_function takes some ten microseconds even without a profiler, which would slow down small messages.
    on = getattr(profiler, "_is_profiler_enabled", False)
    return profiler.record_function(f"collc::{name}") if on else nullcontext()


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether the elements are contiguous in memory, and neither conjugated nor negated lazily."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor itself if it is plain, else a plain copy outside of any autograd graph."""
    return tensor if is_plain(tensor) else tensor.detach().resolve_conj().resolve_neg().contiguous()


class Dense:
    """A contiguous tensor for a call. A tensor that is not contiguous gets the result afterwards."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.dense = dense(tensor)

    def __enter__(self) -> torch.Tensor:
        return self.dense

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self.dense is not self.tensor:
            self.tensor.detach().copy_(self.dense)


def address_of(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def reduced_type(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns NCCL's type for a tensor that is reduced, and the number of NCCL's elements for each of its elements.

    Raises:
        ValueError: the library cannot reduce this type.
    """
    known = _TYPES.get(tensor.dtype)
    if known is not None:
        return known, 1
    if tensor.dtype in _COMPLEX:
        return _COMPLEX[tensor.dtype], 2
    raise ValueError(f"the collc backend cannot reduce {tensor.dtype}")


def moved_type(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns NCCL's type for a tensor that is only moved, and the number of NCCL's elements for each element.

    Ranks compare both.
    """
    known = _TYPES.get(tensor.dtype)
    return (BYTES, tensor.element_size()) if known is None else (known, 1)


def operation_of(opts: Any) -> Any:
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)


def nccl_operation(wanted: Any, dtype: torch.dtype) -> int:
    """Returns NCCL's number of an operation.

    Raises:
        ValueError: the library does not have this operation for this type.
    """
    op = next((number for known, number in _OPS.items() if wanted == known), None)
    name = getattr(wanted, "op", wanted).name  # a ReduceOp with a factor would print its address
    if name == "PREMUL_SUM":  # FSDP's set_gradient_divide_factor
        raise ValueError("the collc backend cannot reduce by PREMUL_SUM: multiply by the factor, then reduce by SUM")
    if op is None:
        raise ValueError(f"the collc backend cannot reduce by {name}")
    if dtype is torch.bool:
        if op == AVG:
            raise ValueError("the collc backend cannot average torch.bool")
        # Sums of truth values would not be 0 or 1. "Any" is their maximum, and "all" is their minimum.
        return {SUM: MAX, PRODUCT: MIN}.get(op, op)
    if dtype in _COMPLEX and op not in (SUM, AVG):
        raise ValueError(f"the collc backend reduces {dtype} by SUM and AVG only, not by {name}")
    return op
