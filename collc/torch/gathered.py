"""Reductions that NCCL does not have, over an all_gather: bitwise operations and sums of sparse tensors.

Every rank gathers all tensors and reduces them in the order of the ranks. This is simple, and has the traffic of an
all_gather.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Gather = Callable[[torch.Tensor], torch.Tensor]  # returns the tensors of all ranks, stacked
_BITWISE = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def is_bitwise(operation: Any, tensor: torch.Tensor) -> bool:
    """Returns whether this is a bitwise operation.

    Raises:
        ValueError: it is one, but the tensor has neither whole numbers nor truth values.
    """
    if not any(operation == known for known in _BITWISE):
        return False
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        raise ValueError(f"{operation} reduces whole numbers, not {tensor.dtype}")
    return True


def bitwise(gather: Gather, given: torch.Tensor, result: torch.Tensor, operation: Any, part: int | None = None) -> None:
    """Reduces the tensors of all ranks, or one part of them, bitwise into `result`."""
    combine = next(function for known, function in _BITWISE.items() if operation == known)
    every = gather(given)
    if part is not None:
        every = every[:, part]
    total = every[0]
    for other in every[1:]:
        total = combine(total, other)
    result.detach().copy_(total.reshape(result.shape))


def sparse_sum(gather: Gather, tensor: torch.Tensor) -> None:
    """Replaces a sparse COO tensor by the sum over all ranks, coalesced."""
    own = tensor.detach().coalesce()
    mine = [own.sparse_dim(), own._nnz(), *own.shape]
    dimensions = gather(torch.tensor([len(mine)]))
    if (dimensions != len(mine)).any():
        raise dist.DistBackendError("all_reduce: the ranks' sparse tensors differ in shape")
    table = gather(torch.tensor(mine))
    if (table[:, [0, *range(2, len(mine))]] != table[0, [0, *range(2, len(mine))]]).any():
        raise dist.DistBackendError("all_reduce: the ranks' sparse tensors differ in shape")
    counts = table[:, 1].tolist()
    indices = torch.zeros((own.sparse_dim(), max(counts)), dtype=torch.int64)
    values = torch.zeros((max(counts), *own.shape[own.sparse_dim() :]), dtype=own.dtype)
    indices[:, : own._nnz()] = own.indices()
    values[: own._nnz()] = own.values()
    all_indices, all_values = gather(indices), gather(values)
    parts = [
        torch.sparse_coo_tensor(i[:, :count], v[:count], own.shape, check_invariants=False)
        for i, v, count in zip(all_indices, all_values, counts, strict=True)
    ]
    total = parts[0]
    for other in parts[1:]:
        total = total + other
    with torch.no_grad():  # `detach` of a sparse tensor would return another tensor
        tensor.copy_(total.coalesce())
