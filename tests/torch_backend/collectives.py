"""Every collective of torch.distributed over the collc backend, on each rank of a torchrun; fails by assertion."""

from __future__ import annotations

import torch
import torch.distributed as dist

import collc.torch  # noqa: F401 - registers the backend


def reductions(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        tensor = torch.full((1000,), rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert (tensor == size * (size + 1) // 2).all(), dtype
    mean = torch.full((7,), float(rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert torch.allclose(mean, torch.full((7,), (size - 1) / 2))
    biggest = torch.tensor([rank, -rank])
    dist.all_reduce(biggest, dist.ReduceOp.MAX)
    assert biggest.tolist() == [size - 1, 0]
    strided = torch.zeros(10, 2)
    strided[:, 0] = rank
    dist.all_reduce(strided[:, 0])
    assert strided[:, 0].tolist() == [size * (size - 1) / 2] * 10
    assert strided[:, 1].tolist() == [0] * 10
    to_one = torch.tensor([float(rank)])
    dist.reduce(to_one, 1)
    assert rank != 1 or to_one.item() == size * (size - 1) / 2
    some = torch.tensor([rank == 1])
    dist.all_reduce(some)
    assert some.item() is True
    output, given = torch.zeros(2), torch.arange(2.0 * size)
    dist.reduce_scatter(output, list(given.chunk(size)))
    assert output.tolist() == [size * 2 * rank, size * (2 * rank + 1)]


def movements(rank: int, size: int) -> None:
    parts = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), float(rank)))
    assert [part[0].item() for part in parts] == list(range(size))
    number = torch.tensor([rank], dtype=torch.int16)  # a type that is only moved
    dist.broadcast(number, 1)
    assert number.item() == 1
    gathered = [torch.zeros(2) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), gathered, dst=0)
    assert gathered is None or [g[1].item() for g in gathered] == list(range(size))
    got = torch.zeros(2)
    dist.scatter(got, [torch.full((2,), float(k)) for k in range(size)] if rank == 0 else None, src=0)
    assert got.tolist() == [rank, rank]
    outputs = [torch.zeros(1) for _ in range(size)]
    dist.all_to_all(outputs, [torch.tensor([10.0 * rank + k]) for k in range(size)])
    assert [o.item() for o in outputs] == [10.0 * k + rank for k in range(size)]
    splits = [k + 1 for k in range(size)]
    uneven = torch.zeros((rank + 1) * size)
    dist.all_to_all_single(uneven, torch.full((sum(splits),), float(rank)), [rank + 1] * size, splits)
    assert uneven.tolist() == [float(k) for k in range(size) for _ in range(rank + 1)]
    things: list[object] = [None] * size
    dist.all_gather_object(things, {"rank": rank})
    assert things == [{"rank": k} for k in range(size)]


def transfers(rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    mine, theirs = torch.full((500_000,), float(rank)), torch.zeros(500_000)
    for order in (0, 1):  # either order of the two, also a different one on each rank
        calls = [lambda: dist.isend(mine, after), lambda: dist.irecv(theirs, before)]
        works = [call() for call in (calls if (rank + order) % 2 else reversed(calls))]
        for work in works:
            work.wait()
        assert theirs[499_999].item() == before
    if rank == 0:
        dist.send(torch.arange(10.0), 1)
    elif rank == 1:
        ten = torch.zeros(10)
        dist.recv(ten, 0)
        assert ten[9].item() == 9


def groups(rank: int, size: int) -> None:
    pair = dist.new_group([0, 1])
    if rank < 2:
        one = torch.tensor([rank + 1.0])
        dist.all_reduce(one, group=pair)
        assert one.item() == 3
    works = [dist.all_reduce(torch.full((1000,), float(k)), async_op=True) for k in range(20)]
    for k, work in enumerate(works):
        work.wait()
        assert work.result()[0][0].item() == k * size
    refused = ""
    try:
        dist.all_reduce(torch.zeros(3, dtype=torch.int16))
    except ValueError as error:
        refused = str(error)
    assert "int16" in refused


def main() -> None:
    dist.init_process_group("collc")
    rank, size = dist.get_rank(), dist.get_world_size()
    for part in (reductions, movements, transfers, groups):
        part(rank, size)
        dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("all right")


if __name__ == "__main__":
    main()
