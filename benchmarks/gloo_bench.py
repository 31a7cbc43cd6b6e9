"""Gloo by the protocol of peerbench.c: `python gloo_bench.py NAME RANKS SECONDS [COLLECTIVE:]SIZES`.

It needs torch. The calls go to torch's ProcessGroupGloo itself. Python adds some microseconds to each, so the smallest
sizes say little about Gloo.
"""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

Call = Callable[[int], None]  # with the root

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
PAGE = 2 << 20
MOST_SAMPLES = 400


def buffer(size: int) -> torch.Tensor:
    """Private memory on 2 MiB pages where there are."""
    memory = mmap.mmap(-1, (size // PAGE + 2) * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % PAGE
    return whole[begin : begin + size].view(torch.float32).zero_()


def given(rank: int, begin: int, count: int) -> torch.Tensor:
    return (rank + 1) + torch.arange(begin, begin + count).remainder(7).to(torch.float32)


class Bench:
    """One rank: its group, its buffers, the protocol."""

    def __init__(self, group: dist.ProcessGroupGloo, rank: int, nranks: int, most: int) -> None:
        self.group, self.rank, self.nranks = group, rank, nranks
        self.input, self.output = buffer(most), buffer(most)

    def largest(self, value: float) -> float:
        """Of all ranks; also a barrier."""
        shared = torch.tensor([value], dtype=torch.float64)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self.group.allreduce([shared], options).wait()
        return float(shared)

    def call(self, collective: str, count: int) -> Call:
        part = count // self.nranks
        if collective == "all_reduce":  # in place, which is all that Gloo has
            return lambda _: self.group.allreduce([self.output[:count]]).wait()
        if collective == "broadcast":
            options = [dist.BroadcastOptions() for _ in range(self.nranks)]
            for root, option in enumerate(options):
                option.rootRank = root
            return lambda root: self.group.broadcast([self.output[:count]], options[root]).wait()
        if collective == "all_gather":
            whole, own = self.output[: part * self.nranks], self.input[:part]
            return lambda _: self.group._allgather_base(whole, own).wait()
        own, whole = self.output[:part], self.input[: part * self.nranks]
        return lambda _: self.group._reduce_scatter_base(own, whole).wait()

    def right(self, collective: str, count: int) -> bool:
        """Runs it once on known values; whether every element that this rank gets is right."""
        part, n = count // self.nranks, self.nranks
        self.input[:count] = given(self.rank, 0, count)
        self.output[:count] = -1
        if collective == "all_reduce" or (collective == "broadcast" and self.rank == 0):
            self.output[:count] = given(self.rank, 0, count)
        self.call(collective, count)(0)
        reduced = n * (n + 1) / 2 + n * (given(0, 0, count) - 1)
        expected = {
            "all_reduce": reduced,
            "broadcast": given(0, 0, count),
            "all_gather": torch.cat([given(r, 0, part) for r in range(n)]),
            "reduce_scatter": reduced[self.rank * part : (self.rank + 1) * part],
        }[collective]
        return bool((self.output[: len(expected)] == expected).all())

    def sample(self, call: Call, calls: int) -> float:
        """Seconds per call, of the slowest rank."""
        self.largest(0)
        begin = time.perf_counter()
        for i in range(calls):
            call(i % self.nranks)
        return self.largest((time.perf_counter() - begin) / calls)

    def measure(self, collective: str, size: int, budget: float) -> tuple[list[float], bool, tuple[float, float]]:
        """Sorted seconds, whether a result was wrong, and from when to when that was measured."""
        count = size // 4
        wrong = self.largest(0 if self.right(collective, count) else 1) > 0
        self.input.zero_()
        self.output.zero_()
        call, calls = self.call(collective, count), 2
        for _ in range(2):  # batches of some 8 ms; every rank is root equally often
            calls = (min(8000, int(0.008 / self.sample(call, calls))) // self.nranks + 1) * self.nranks
        times: list[float] = []
        begin = time.monotonic()
        while len(times) < MOST_SAMPLES:
            times.append(self.sample(call, calls))
            end = time.monotonic()
            spent = self.largest(end - begin)
            if len(times) >= 3 and spent > (budget if len(times) >= 9 else 6 * budget):
                break
        return sorted(times), wrong, (begin, end)


def run_rank(name: str, rank: int, nranks: int, budget: float, what: str, meeting: str) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    if nranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    only, _, listed = what.rpartition(":")
    sizes = [int(size) for size in listed.split(",")]
    store = dist.FileStore(meeting, nranks)
    bench = Bench(dist.ProcessGroupGloo(store, rank, nranks, timedelta(seconds=60)), rank, nranks, max(sizes))
    for collective in [only] if only else COLLECTIVES:
        for size in sizes:
            times, wrong, (begin, end) = bench.measure(collective, size, budget)
            if rank == 0:
                middle, n = statistics.median(times), len(times)
                row = (middle, times[n // 10], times[n * 9 // 10])
                figures = ",".join(f"{1e6 * seconds:.3f}" for seconds in row)
                check = f"{n},{'WRONG' if wrong else 'ok'},{begin:.4f},{end:.4f}"
                print(f"{name},{collective},{nranks},{size},{figures},{check}", flush=True)
    bench.largest(0)


def main() -> None:
    name, ranks, seconds, what = sys.argv[1:]
    nranks = int(ranks)
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(nranks):
            child = os.fork()
            if child == 0:
                run_rank(name, rank, nranks, float(seconds), what, f"{folder}/store")
                os._exit(0)
            children.append(child)
        failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
