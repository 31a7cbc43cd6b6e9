"""Futures of the collc backend and their callbacks, on each rank of a torchrun; fails by assertion."""

from __future__ import annotations

import functools
import operator
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel

import collc.torch  # noqa: F401 - registers the backend
from collc.torch.work import Work


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    raise AssertionError("no error")


def failed_works(rank: int, size: int) -> None:
    """A failed work reports the failure in every way, and its future has failed for Python and for C++."""
    for early in (True, False):
        work = Work("all_reduce", [torch.ones(1)])
        future = work.get_future() if early else None
        assert not work.is_completed()
        assert not work.is_success()
        assert work.end(dist.DistBackendError("rank 7 has died")) == early
        if early:
            work.complete_future()
        future = work.get_future()
        assert work.is_completed()
        assert not work.is_success()
        assert "rank 7" in str(work.exception())
        assert "rank 7" in error_of(work.wait)
        assert "rank 7" in error_of(future.wait)
        assert "rank 7" in error_of(torch.futures.collect_all([future]).wait)  # looks at it in C++
        assert "rank 7" in error_of(future.then(lambda failed: failed.value()).wait)
    # Why it is done like that: an exception that Python sets is a value to C++.
    stored: torch.futures.Future[object] = torch.futures.Future()
    stored.set_exception(RuntimeError("rank 7 has died"))
    torch._C._distributed_c10d._create_work_from_future(stored).wait()


def nested(rank: int, size: int) -> None:
    """Callbacks call collectives of their group and wait for them, two deep; all ranks run them in one order."""
    found = []

    def outer(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        given = future.value()[0]
        dist.all_reduce(given)  # waits in the callback
        inner = dist.all_reduce(given, async_op=True).get_future().then(deeper)
        return inner.wait()

    def deeper(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        given = future.value()[0]
        dist.all_reduce(given, async_op=True).get_future().wait()
        return given

    for number in range(20):
        tensor = torch.full((100,), float(number))
        found.append(dist.all_reduce(tensor, async_op=True).get_future().then(outer))
        dist.all_reduce(torch.full((100,), -1.0))  # of the same count: an exchange would give wrong numbers
    for number, future in enumerate(found):
        assert (future.wait() == number * size**4).all()


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))


def hooks(rank: int, size: int) -> None:
    """Communication hooks of DDP, PowerSGD with several buckets among them, train alike on all ranks."""
    power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    for state, hook in (
        (None, default_hooks.allreduce_hook),
        (None, default_hooks.fp16_compress_hook),
        (power, powerSGD_hook.powerSGD_hook),
    ):
        model = DistributedDataParallel(network(), bucket_cap_mb=0.02)
        model.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(6):
            generator = torch.Generator().manual_seed(10 * step + rank)
            optimizer.zero_grad()
            model(torch.randn(4, 64, generator=generator)).square().mean().backward()
            optimizer.step()
        for parameter in model.parameters():
            everyone = [torch.zeros_like(parameter) for _ in range(size)]
            dist.all_gather(everyone, parameter.detach())
            assert all(torch.equal(everyone[0], other) for other in everyone), hook
            assert torch.isfinite(parameter).all()


def failed_backward(rank: int, size: int) -> None:
    """DDP's reducer, in C++, raises in backward what broke the group."""
    group = dist.new_group()
    model = DistributedDataParallel(network(), process_group=group)
    model(torch.ones(2, 64)).sum().backward()
    dist.barrier()
    group.abort()
    assert "bort" in error_of(lambda: model(torch.ones(2, 64)).sum().backward())


def coalesced(rank: int, size: int) -> None:
    ones = [torch.full((4,), float(rank + 1)), torch.full((9,), float(rank + 2))]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in ones:
            dist.all_reduce(tensor)
    manager.wait()
    assert (ones[0] == size * (size + 1) / 2).all()
    outputs = [torch.zeros(2 * size), torch.zeros(3 * size)]
    with _coalescing_manager():
        for output, count in zip(outputs, (2, 3), strict=True):
            dist.all_gather_into_tensor(output, torch.full((count,), float(rank)))
    assert outputs[1].view(size, 3)[:, 0].tolist() == list(range(size))
    lists = [[torch.zeros(2), torch.zeros(1)] for _ in range(size)]
    given = [torch.full((2,), float(rank)), torch.tensor([float(rank)])]
    dist.all_gather_coalesced(lists, given)
    assert [int(one) for _, one in lists] == list(range(size))
    uneven = [torch.zeros(k + 1) for k in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    assert all((part == k).all() for k, part in enumerate(uneven))


def other_reductions(rank: int, size: int) -> None:
    bits = torch.tensor([1 << rank, 0b1111], dtype=torch.int32)
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    assert bits.tolist() == [(1 << size) - 1, 0b1111]
    to_one = torch.tensor([rank + 1])
    dist.reduce(to_one, 0, dist.ReduceOp.BXOR)
    assert rank != 0 or to_one.item() == functools.reduce(operator.xor, range(1, size + 1))
    scattered = torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter_tensor(scattered, torch.full((size,), 1 << rank), dist.ReduceOp.BOR)
    assert scattered.item() == (1 << size) - 1
    sparse = torch.sparse_coo_tensor([[rank, size]], [1.0, 10.0], (size + 1,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * size + [10.0 * size]
    numbers = torch.full((3,), 1 + rank * 1j)
    dist.all_reduce(numbers)
    assert (numbers == size + 1j * (size * (size - 1) / 2)).all()
    empty = torch.zeros(0)
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)


def life_of_groups(rank: int, size: int) -> None:
    """Groups of one rank, of some, destroyed in between; a timeout names the call."""
    alone = [dist.new_group([k]) for k in range(size)]
    mine = torch.full((3,), float(rank))
    dist.all_reduce(mine, group=alone[rank])
    assert (mine == rank).all()
    dist.destroy_process_group(alone[rank])
    assert "destroyed" in error_of(lambda: alone[rank].allreduce([mine]))
    assert "destroyed" in error_of(lambda: alone[rank].send([mine], 0, 0).wait())
    dist.barrier()
    late = dist.new_group(timeout=timedelta(seconds=0.3))
    if rank == 0:
        told = error_of(lambda: dist.all_reduce(mine, group=late))
        assert "Timed out waiting 300ms for all_reduce" in told
        assert "Timed out waiting 300ms for all_reduce" in error_of(lambda: dist.all_reduce(mine, group=late))
    dist.barrier()
    assert rank == 0 or "rank 0" in error_of(lambda: dist.all_reduce(mine, group=late))
    dist.barrier()
    if rank == 0:
        told = error_of(lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.3), wait_all_ranks=True))
        assert f"Ranks {', '.join(map(str, range(1, size)))} failed to pass monitoredBarrier" in told
    dist.barrier()


def checkpoints(rank: int, size: int) -> None:
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)
    pair = dist.new_group()
    dcp.async_save({"weights": torch.full((4,), 5.0)}, checkpoint_id=Path(folder[0]), process_group=pair).result()
    loaded = {"weights": torch.zeros(4)}
    dcp.load(loaded, checkpoint_id=Path(folder[0]))
    assert (loaded["weights"] == 5).all()


def main() -> None:
    dist.init_process_group("collc")
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = (failed_works, nested, hooks, failed_backward, coalesced, other_reductions, life_of_groups, checkpoints)
    for part in parts:
        part(rank, size)
        dist.barrier()
        if rank == 0:
            print(part.__name__, flush=True)
    dist.destroy_process_group()
    if rank == 0:
        print("all right")


if __name__ == "__main__":
    main()
