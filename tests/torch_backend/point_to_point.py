"""Sends and receives over the collc backend, on each rank of a torchrun; fails by assertion."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import collc.torch  # noqa: F401 - registers the backend

SMALL, LARGE = 100, 500_000  # elements: one travels at once, one is offered


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    raise AssertionError("no error")


def tags(rank: int, size: int) -> None:
    """Messages are matched by tag, in any order of sending and receiving."""
    for count in (SMALL, LARGE, 0):
        if rank == 0:
            works = [dist.isend(torch.full((count,), float(tag)), 1, tag=tag) for tag in (1, 2, 3)]
            for work in works:
                work.wait()
        elif rank == 1:
            for tag in (3, 1, 2):
                got = torch.zeros(count)
                dist.recv(got, 0, tag=tag)
                assert (got == tag).all()


def order(rank: int, size: int) -> None:
    """Messages of one source and tag arrive in order, small and large ones mixed."""
    sizes = [SMALL, LARGE, SMALL, 1, LARGE, 0, SMALL]
    tensors = [torch.full((count,), float(k)) for k, count in enumerate(sizes)]
    if rank == 0:
        for work in [dist.isend(tensor, 1) for tensor in tensors]:
            work.wait()
    elif rank == 1:
        for k, count in enumerate(sizes):
            got = torch.zeros(count)
            dist.recv(got, 0)
            assert (got == k).all()


def any_source(rank: int, size: int) -> None:
    for count in (SMALL, LARGE):
        if rank == 0:
            sources = []
            for _ in range(1, size):
                got = torch.zeros(count)
                source = dist.recv(got)
                assert (got == source).all()
                sources.append(source)
            assert sorted(sources) == list(range(1, size))
        else:
            dist.send(torch.full((count,), float(rank)), 0)
        dist.barrier()


def beside_collectives(rank: int, size: int) -> None:
    """A receive may be posted before a collective and its send be made after it."""
    got = torch.zeros(LARGE)
    before, after = (rank - 1) % size, (rank + 1) % size
    work = dist.irecv(got, before)
    total = torch.ones(10)
    dist.all_reduce(total)
    assert (total == size).all()
    assert not work.is_completed()
    dist.barrier()
    send = dist.isend(torch.full((LARGE,), float(rank)), after)
    work.wait()
    send.wait()
    assert (got == before).all()


def progress(rank: int, size: int) -> None:
    """A send is taken while its owner computes, and asks for nothing."""
    if rank == 0:
        work = dist.isend(torch.ones(LARGE), 1)
        until = time.monotonic() + 60
        while not work.is_completed():  # computes
            torch.ones(1000).sum()
            assert time.monotonic() < until
        work.wait()
    elif rank == 1:
        got = torch.zeros(LARGE)
        dist.recv(got, 0)
        assert (got == 1).all()


def batches(rank: int, size: int) -> None:
    for count in (SMALL, LARGE):
        mine, theirs = torch.full((count,), float(rank)), torch.zeros(count)
        operations = [
            dist.P2POp(dist.isend, mine, (rank + 1) % size),
            dist.P2POp(dist.irecv, theirs, (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(operations if rank % 2 else operations[::-1]):
            work.wait()
        assert (theirs == (rank - 1) % size).all()


def layouts(rank: int, size: int) -> None:
    """A tensor that is not contiguous passes through a copy on both sides."""
    if rank == 0:
        dist.send(torch.arange(20.0).view(4, 5).t(), 1)
        dist.send(torch.tensor([1 + 2j, 3 - 1j]).conj().imag, 1)  # negative only by a flag
        dist.send(torch.tensor([1 + 2j, 3 - 1j]), 1)
    elif rank == 1:
        wide = torch.zeros(5, 8)
        dist.recv(wide[:, ::2], 0)
        assert torch.equal(wide[:, ::2], torch.arange(20.0).view(4, 5).t())
        assert (wide[:, 1::2] == 0).all()
        numbers = torch.zeros(2, dtype=torch.complex64)
        dist.recv(numbers.imag, 0)
        assert numbers.tolist() == [-2j, 1j]
        dist.recv(numbers, 0)
        assert numbers.tolist() == [1 + 2j, 3 - 1j]


def many(rank: int, size: int) -> None:
    """More small messages than may wait unread: they arrive, in order."""
    if rank == 0:
        for k in range(1500):
            dist.isend(torch.full((1000,), float(k)), 1)
    dist.barrier()
    if rank == 1:
        got = torch.zeros(1000)
        for k in range(1500):
            dist.recv(got, 0)
            assert (got == k).all()
    dist.barrier()


def threads(rank: int, size: int) -> None:
    """Two threads of a rank send and receive at a time."""
    failures: list[BaseException] = []

    def exchange(tag: int) -> None:
        try:
            for k in range(20):
                got = torch.zeros(SMALL)
                work = dist.isend(torch.full((SMALL,), float(k + tag)), (rank + 1) % size, tag=tag)
                dist.recv(got, (rank - 1) % size, tag=tag)
                work.wait()
                assert (got == k + tag).all()
        except BaseException as error:
            failures.append(error)

    both = [threading.Thread(target=exchange, args=(tag,)) for tag in (100, 200)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert not failures


def futures(rank: int, size: int) -> None:
    """A callback of a receive's future may itself send and receive."""
    if rank == 0:
        dist.send(torch.ones(3), 1)
        echo = torch.zeros(3)
        dist.recv(echo, 1)
        assert (echo == 2).all()
    elif rank == 1:
        got = torch.zeros(3)
        done = threading.Event()

        def answer(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            dist.isend(future.value()[0] + 1, 0).get_future().wait()
            done.set()
            return future.value()[0] * 10

        answered = dist.irecv(got, 0).get_future().then(answer)
        assert (answered.wait() == 10).all()
        assert done.is_set()


def sizes(rank: int, size: int) -> None:
    """A tensor of another size is refused on both sides. The group's other pairs go on."""
    for count in (SMALL, LARGE):
        refuse(rank, count, dist.new_group([0, 1]))
        dist.barrier()


def refuse(rank: int, count: int, pair: dist.ProcessGroup) -> None:
    def send() -> None:
        until = time.monotonic() + 60
        while True:  # the send of a small tensor ends when it has left; the next send gets the error
            dist.send(torch.ones(count), 1, group=pair)
            assert count == SMALL
            assert time.monotonic() < until

    if rank == 0:
        assert f"{4 * count} bytes" in error_of(send)
    elif rank == 1:
        told = error_of(lambda: dist.recv(torch.ones(count + 1), 0, group=pair))
        assert f"rank 0 sent {4 * count} bytes" in told
        assert f"a tensor of {4 * count + 4} bytes" in told
        assert told == error_of(lambda: dist.recv(torch.ones(count), 0, group=pair))


def timeouts(rank: int, size: int) -> None:
    pair = dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
    if rank == 1:
        got = torch.zeros(SMALL)
        work = dist.irecv(got, 0, tag=7)
        assert "timed out" in error_of(lambda: work.wait(timedelta(seconds=0.1)))
        assert "Timed out waiting 500ms for recv" in error_of(lambda: dist.recv(torch.zeros(1), 0, group=pair))
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(SMALL), 1, tag=7)
        assert "Timed out waiting 500ms for send" in error_of(lambda: dist.send(torch.zeros(LARGE), 1, group=pair))
    elif rank == 1:
        work.wait()  # a wait that timed out has not ended the receive
        assert (got == 1).all()
    dist.barrier()


def leaving(rank: int, size: int) -> None:
    """A rank that waits for one that has left the group gets an error, after everything that was sent."""
    pair = dist.new_group([0, 1])
    if rank == 0:
        dist.send(torch.ones(SMALL), 1, group=pair)
        dist.destroy_process_group(pair)
    elif rank == 1:
        got = torch.zeros(SMALL)
        dist.recv(got, 0, group=pair)
        assert (got == 1).all()
        assert "rank 0 has left the group" in error_of(lambda: dist.recv(got, 0, group=pair))
        assert "rank 0 has left the group" in error_of(lambda: dist.recv(got, group=pair))
        assert "rank 0 has left the group" in error_of(lambda: dist.send(got, 0, group=pair))
        dist.destroy_process_group(pair)
    dist.barrier()


def arguments(rank: int, size: int) -> None:
    assert "sparse" in error_of(lambda: dist.send(torch.ones(3).to_sparse(), (rank + 1) % size))
    assert "meta" in error_of(lambda: dist.isend(torch.ones(3, device="meta"), (rank + 1) % size))
    assert "rank" in error_of(lambda: dist.group.WORLD.send([torch.ones(3)], size, 0))


def main() -> None:
    dist.init_process_group("collc")
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = (tags, order, any_source, beside_collectives, progress, batches, layouts, many, threads, futures)
    for part in (*parts, sizes, timeouts, leaving, arguments):
        part(rank, size)
        dist.barrier()
        if rank == 0:
            print(part.__name__, flush=True)
    dist.destroy_process_group()
    if rank == 0:
        print("all right")


if __name__ == "__main__":
    main()
