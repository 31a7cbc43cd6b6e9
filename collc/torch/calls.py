"""ctypes on one rank's communicator, and what tensors are to NCCL."""

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
BYTES = 1  # ncclUint8: what is only moved, and has no type of NCCL, counts in bytes
SUM, PRODUCT, MAX, MIN, AVG = range(5)
_OPS = {
    dist.ReduceOp.SUM: SUM,
    dist.ReduceOp.PRODUCT: PRODUCT,
    dist.ReduceOp.MAX: MAX,
    dist.ReduceOp.MIN: MIN,
    dist.ReduceOp.AVG: AVG,
}


class Communicator:
    """ctypes on one rank's communicator. Calls block until their buffers are done and release the GIL."""

    def __init__(self, library: Path, nranks: int, rank: int, unique: bytes) -> None:
        self.nccl = Nccl(library)
        self.lib = self.nccl.lib
        self.comm = ctypes.c_void_p()
        value = UniqueId.from_buffer_copy(unique)
        self.check(self.lib.ncclCommInitRank(ctypes.byref(self.comm), nranks, value, rank), "ncclCommInitRank")

    def check(self, result: int, what: str) -> None:
        """Raises DistBackendError with the library's own words."""
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
        """Destroys the communicator; `abort` also ends what runs in it, here and on the other ranks."""
        comm, self.comm = self.comm, ctypes.c_void_p()
        if comm:
            name = "ncclCommAbort" if abort else "ncclCommDestroy"
            self.check(getattr(self.lib, name)(comm), name)


def _traced(name: str) -> AbstractContextManager[object]:
    """An event `collc::ncclAllReduce` where torch.profiler runs; it has to profile all threads to show it."""
    # Some ten microseconds even without a profiler, which small messages would feel.
    on = getattr(profiler, "_is_profiler_enabled", False)
    return profiler.record_function(f"collc::{name}") if on else nullcontext()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the elements are contiguous in memory and stored as they are."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it is plain, else a copy that is; outside of any graph."""
    return tensor if is_plain(tensor) else tensor.detach().resolve_conj().resolve_neg().contiguous()


class Dense:
    """A contiguous tensor for the call; what was not contiguous gets the result back afterwards."""

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
    """NCCL's type of a tensor that is reduced, and how many of them one element is.

    Raises:
        ValueError: for a type that the library cannot reduce.
    """
    known = _TYPES.get(tensor.dtype)
    if known is not None:
        return known, 1
    if tensor.dtype in _COMPLEX:
        return _COMPLEX[tensor.dtype], 2
    raise ValueError(f"the collc backend cannot reduce {tensor.dtype}")


def moved_type(tensor: torch.Tensor) -> tuple[int, int]:
    """NCCL's type of a tensor that is only moved, and how many of them one element is: ranks compare both."""
    known = _TYPES.get(tensor.dtype)
    return (BYTES, tensor.element_size()) if known is None else (known, 1)


def operation_of(opts: Any) -> Any:
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)


def nccl_operation(wanted: Any, dtype: torch.dtype) -> int:
    """NCCL's operation.

    Raises:
        ValueError: if the library has none for this type.
    """
    op = next((number for known, number in _OPS.items() if wanted == known), None)
    name = getattr(wanted, "op", wanted).name  # a ReduceOp, as one with a factor is, prints its address
    if name == "PREMUL_SUM":  # FSDP's set_gradient_divide_factor
        raise ValueError("the collc backend cannot reduce by PREMUL_SUM: multiply by the factor, then reduce by SUM")
    if op is None:
        raise ValueError(f"the collc backend cannot reduce by {name}")
    if dtype is torch.bool:
        if op == AVG:
            raise ValueError("the collc backend cannot average torch.bool")
        # Sums of truth values would leave 0 and 1: any is their maximum, all their minimum.
        return {SUM: MAX, PRODUCT: MIN}.get(op, op)
    if dtype in _COMPLEX and op not in (SUM, AVG):
        raise ValueError(f"the collc backend reduces {dtype} by SUM and AVG only, not by {name}")
    return op
