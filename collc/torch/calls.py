"""ctypes on one rank's communicator, and what tensors are to NCCL."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import profiler

from collc.bench.nccl import Nccl, UniqueId

_TYPES: dict[torch.dtype, int] = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
    torch.float8_e4m3fn: 10,
    torch.float8_e5m2: 11,
    torch.bool: 1,
}
BYTES = 1  # ncclUint8: what collectives that only move data count in
_OPS = {
    dist.ReduceOp.SUM: 0,
    dist.ReduceOp.PRODUCT: 1,
    dist.ReduceOp.MAX: 2,
    dist.ReduceOp.MIN: 3,
    dist.ReduceOp.AVG: 4,
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
        self.nccl.check(result, what)

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(self.lib, name)
        with _traced(name):
            self.check(function(*arguments, self.comm, None), name)


def _traced(name: str) -> AbstractContextManager[object]:
    """An event `collc::ncclAllReduce` where torch.profiler runs; it has to profile all threads to show it."""
    # Some ten microseconds even without a profiler, which small messages would feel.
    on = getattr(profiler, "_is_profiler_enabled", False)
    return profiler.record_function(f"collc::{name}") if on else nullcontext()


class Dense:
    """A contiguous tensor for the call; what was not contiguous gets the result back afterwards."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.dense = tensor.contiguous()

    def __enter__(self) -> torch.Tensor:
        return self.dense

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self.dense is not self.tensor:
            self.tensor.copy_(self.dense)


def address_of(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def nbytes(tensor: torch.Tensor) -> ctypes.c_size_t:
    return ctypes.c_size_t(tensor.numel() * tensor.element_size())


def nccl_type(tensor: torch.Tensor) -> int:
    if tensor.device.type != "cpu":
        raise ValueError(f"the collc backend takes CPU tensors, not {tensor.device}; on GPUs, preload the library")
    if tensor.dtype not in _TYPES:
        raise ValueError(f"collc cannot reduce {tensor.dtype}")
    return _TYPES[tensor.dtype]


def nccl_operation(opts: Any, tensor: torch.Tensor) -> int:
    wanted = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    op = next((number for known, number in _OPS.items() if wanted == known), None)
    if op is None:
        raise ValueError(f"collc cannot reduce by {wanted}")
    if tensor.dtype is torch.bool:
        # Sums of truth values would leave 0 and 1: any is their maximum, all their minimum.
        return {0: 2, 1: 3}.get(op, op)
    return op


def require_same_size(parts: Sequence[torch.Tensor], one: torch.Tensor) -> None:
    if any(part.numel() != one.numel() or part.dtype != one.dtype for part in parts):
        raise ValueError("collc needs tensors of one size and type from all ranks")
