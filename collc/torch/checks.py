"""Checks the tensors of a call before the library gets an address. Errors name the call and the argument.

All checks raise ValueError (TypeError if an argument is no tensor), like Gloo's. They check what a single rank can see.
The library reports different counts or types of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def tensor(call: str, name: str, given: torch.Tensor) -> torch.Tensor:
    """Returns the tensor if it is a dense tensor on the CPU."""
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"{call}: {name} is {type(given).__name__}, not a tensor")
    if given.device.type != "cpu":
        raise ValueError(
            f"{call}: {name} is on {given.device}: the collc backend takes CPU tensors; on GPUs, preload a library of "
            "the cuda target below the nccl backend"
        )
    if given.layout is not torch.strided:
        raise ValueError(f"{call}: {name} has the layout {given.layout}: only dense tensors are taken here")
    return given


def one(call: str, name: str, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the only tensor of a list."""
    if len(given) != 1:
        raise ValueError(f"{call}: {name} must be one tensor per rank, not {len(given)}")
    return tensor(call, name, given[0])


def tensors(call: str, name: str, given: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
    """Returns the list if it has one tensor for each rank."""
    if len(given) != count:
        raise ValueError(f"{call}: {name} has {len(given)} tensors for {count} ranks")
    for index, part in enumerate(given):
        tensor(call, f"{name}[{index}]", part)
    return given


def same_type(call: str, name: str, given: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    if given.dtype is not other.dtype:
        raise ValueError(f"{call}: {name} is {given.dtype}, but {other_name} is {other.dtype}")


def same_shape(call: str, name: str, given: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Checks that types and shapes are equal."""
    same_type(call, name, given, other_name, other)
    if given.shape != other.shape:
        raise ValueError(
            f"{call}: {name} has the shape {tuple(given.shape)}, but {other_name} has {tuple(other.shape)}"
        )


def parts(call: str, name: str, given: Sequence[torch.Tensor], count: int, like_name: str, like: torch.Tensor) -> None:
    """Checks that a list has one tensor for each rank, with the type and shape of another tensor."""
    for index, part in enumerate(tensors(call, name, given, count)):
        same_shape(call, f"{name}[{index}]", part, like_name, like)


def times(call: str, name: str, big: torch.Tensor, count: int, small_name: str, small: torch.Tensor) -> None:
    """Checks that `big` has as many elements as `count` times `small`."""
    same_type(call, name, big, small_name, small)
    if big.numel() != count * small.numel():
        raise ValueError(
            f"{call}: {name} has {big.numel()} elements, but {count} ranks with a {small_name} of {small.numel()} "
            f"make {count * small.numel()}"
        )


def rank(call: str, name: str, given: int, count: int) -> int:
    if not 0 <= given < count:
        raise ValueError(f"{call}: {name} is {given}, but the group has the ranks 0 to {count - 1}")
    return given


def root(call: str, opts: object, count: int) -> int:
    """Returns the root of a call. The root tensor must be 0, because there is one tensor per rank."""
    if getattr(opts, "rootTensor", 0):
        raise ValueError(f"{call}: the root tensor is {opts.rootTensor}, but there is one tensor per rank")  # type: ignore[attr-defined]
    return rank(call, "the root", int(opts.rootRank), count)  # type: ignore[attr-defined]


def splits(call: str, name: str, given: torch.Tensor, sizes: Sequence[int] | None, count: int) -> list[int]:
    """Returns the number of rows to or from each rank (default: equal numbers)."""
    if given.dim() == 0:
        raise ValueError(f"{call}: {name} has no dimension to be split along")
    rows = given.shape[0]
    if not sizes:
        if rows % count:
            raise ValueError(f"{call}: the {rows} rows of {name} cannot be divided among {count} ranks")
        return [rows // count] * count
    if len(sizes) != count:
        raise ValueError(f"{call}: {len(sizes)} split sizes of {name} for {count} ranks")
    if any(size < 0 for size in sizes) or sum(sizes) != rows:
        raise ValueError(f"{call}: the split sizes of {name} make {sum(sizes)} rows, but it has {rows}")
    return list(sizes)
