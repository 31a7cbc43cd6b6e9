"""Calls that cannot be right, on each rank of a torchrun: each raises, says why, and leaves the group usable or broken
as it should; fails by assertion."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

import collc.torch  # noqa: F401 - registers the backend


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error)
    raise AssertionError("no error")


def arguments(rank: int, size: int) -> None:
    """Faults that one rank can see are refused before any message: every rank refuses, and the group goes on."""
    one, two, ints = torch.ones(4), torch.ones(8), torch.ones(4, dtype=torch.int32)
    wide = torch.ones(4 * size)
    group = dist.group.WORLD
    refused: dict[str, list[Callable[[], object]]] = {
        "elements": [
            lambda: dist.all_gather_into_tensor(torch.ones(4 * size - 1), one),
            lambda: dist.all_gather_into_tensor(torch.ones(4 * size + 1), one),
            lambda: dist.reduce_scatter_tensor(one, torch.ones(4 * size - 1)),
            lambda: group.all_gather_single_coalesced([wide, torch.ones(1)], [one, one]),
            lambda: group.reduce_scatter_single_coalesced([one, one], [wide, one]),
        ],
        "shape": [
            lambda: dist.reduce_scatter(one, [two] * size),
            lambda: dist.all_gather([two] * size, one),
            lambda: dist.gather(one, [two] * size if rank == 0 else None, dst=0) if rank == 0 else _shape(),
            lambda: dist.scatter(one, [two] * size if rank == 0 else None, src=0) if rank == 0 else _shape(),
        ],
        "torch.int32": [
            lambda: group.all_gather_single(wide, ints),
            lambda: group.reduce_scatter_single(ints, wide),
            lambda: group.allgather([[ints] * size], [one]),
            lambda: group.reduce_scatter([ints], [[one] * size]),
            lambda: group.alltoall([ints] * size, [one] * size),
            lambda: group.all_to_all_single(torch.ones(4 * size, dtype=torch.int32), wide, [], []),
        ],
        "ranks": [
            lambda: group.allgather([[one] * (size + 1)], [one]),
            lambda: group.reduce_scatter([one], [[one] * (size - 1)]),
            lambda: group.alltoall([one] * (size + 1), [one] * (size + 1)),
            lambda: group.broadcast([one], _rooted(dist.BroadcastOptions(), size)),
            lambda: group.reduce([one], _rooted(dist.ReduceOptions(), -1)),
            lambda: dist.all_to_all_single(torch.ones(size * 2 + 1), torch.ones(size * 2 + 1)),
            lambda: group.all_to_all_single(wide, wide.clone(), [4] * size, [4] * (size + 1)),
        ],
        "rows": [lambda: group.all_to_all_single(wide, wide.clone(), [4] * size, [5] * size)],
        "CPU": [
            lambda: dist.all_reduce(torch.ones(4, device="meta")),
            lambda: dist.broadcast(torch.ones(4, device="meta"), 0),
            lambda: dist.all_gather_into_tensor(torch.ones(4 * size, device="meta"), one),
        ],
        "sparse": [
            lambda: dist.broadcast(one.to_sparse(), 0),
            lambda: dist.reduce(one.to_sparse(), 0),
            lambda: dist.all_reduce(one.to_sparse(), dist.ReduceOp.MAX),
        ],
        "reduce": [
            lambda: dist.all_reduce(torch.ones(4, dtype=torch.int16)),
            lambda: dist.all_reduce(one, dist.ReduceOp.BAND),
            lambda: dist.all_reduce(torch.ones(4, dtype=torch.complex64), dist.ReduceOp.MAX),
        ],
        "per rank": [
            lambda: group.allreduce([one, one]),
            lambda: group.broadcast([], _rooted(dist.BroadcastOptions(), 0)),
            lambda: group.allgather([[one] * size, [one] * size], [one]),
        ],
    }
    for word, calls in refused.items():
        for place, call in enumerate(calls):
            told = error_of(call)
            assert word in told, (word, place, told)
    dist.all_reduce(one)
    assert (one == size).all()


def _shape() -> None:
    raise ValueError("shape: not the root")  # of these calls only the root can see it


def _rooted(options: object, root: int) -> object:
    options.rootRank = root  # type: ignore[attr-defined]
    return options


def disagreements(rank: int, size: int) -> None:
    """Ranks whose calls differ get an error, each of them, and no stale data; the group is broken after that."""

    def uneven(count: int) -> list[torch.Tensor]:
        return [torch.zeros(count) for _ in range(size)]

    mine = 1000 + 1000 * rank
    cases: list[Callable[[dist.ProcessGroup], object]] = [
        lambda group: dist.all_reduce(torch.ones(mine), group=group),
        lambda group: dist.all_reduce(torch.ones(mine if rank else 0), group=group),
        lambda group: dist.all_reduce(torch.ones(100, dtype=torch.float32 if rank else torch.int32), group=group),
        lambda group: dist.all_reduce(torch.ones(9), dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX, group=group),
        lambda group: dist.all_gather_into_tensor(torch.zeros(size * mine), torch.ones(mine), group=group),
        lambda group: dist.all_gather(uneven(mine), torch.ones(mine), group=group),
        lambda group: dist.reduce_scatter_tensor(torch.zeros(mine), torch.ones(size * mine), group=group),
        lambda group: dist.all_to_all_single(torch.zeros(size * mine), torch.ones(size * mine), group=group),
        lambda group: dist.all_to_all(uneven(mine), uneven(mine), group=group),
        lambda group: dist.barrier(group=group) if rank else dist.all_reduce(torch.ones(8), group=group),
    ]
    for place, case in enumerate(cases):
        group = dist.new_group()
        told = error_of(partial(case, group))
        assert any(word in told for word in ("differ", "rank")), (place, told)
        dist.monitored_barrier(timeout=timedelta(seconds=100))
        dist.destroy_process_group(group)


def main() -> None:
    dist.init_process_group("collc")
    rank, size = dist.get_rank(), dist.get_world_size()
    for part in (arguments, disagreements):
        part(rank, size)
        if rank == 0:
            print(part.__name__, flush=True)
    dist.destroy_process_group()
    if rank == 0:
        print("all right")


if __name__ == "__main__":
    main()
