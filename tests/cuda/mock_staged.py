"""Calls by copy engines between ranks that decide apart (see mock_scenarios.py): in processes, in threads, in both."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mock_job import FLOAT, Array, Buffer, Comm, Job

from collc.bench.nccl import UniqueId

ROOT = 1


class Member:
    """A rank that this thread drives, with two streams on a separate GPU."""

    def __init__(self, job: Job, rank: int, comm: Comm) -> None:
        job.use(rank)
        self.job, self.rank, self.comm = job, rank, comm
        self.streams = [job.stream(), job.stream()]

    def room(self, count: int) -> Buffer:
        self.job.use(self.rank)
        return self.job.room(count)

    def call(self, name: str, send: int, recv: int, count: int, stream: ctypes.c_void_p) -> int:
        lib = self.job.lib
        if name == "all_reduce":
            return int(lib.ncclAllReduce(send, recv, count, FLOAT, 0, self.comm, stream))
        if name == "broadcast":
            return int(lib.ncclBroadcast(send, recv, count, FLOAT, ROOT, self.comm, stream))
        return int(lib.ncclAllGather(send, recv, count, FLOAT, self.comm, stream))


class StagedCalls(Job):
    together: threading.Barrier

    def by_owner(self) -> list[int]:
        """Returns the ranks of this process. `owners` lists the ranks of each process."""
        owners: list[list[int]] = self.given.get("owners", [[rank] for rank in range(self.nranks)])
        self.total = sum(map(len, owners))
        return owners[self.rank]

    def members(self, ranks: Sequence[int], name: str = "world") -> list[Member]:
        if 0 in ranks:
            self.say(f"id-{name}", self.nccl.unique_id())
        unique = UniqueId.from_buffer_copy(self.hear(f"id-{name}"))
        comms = [Comm() for _ in ranks]
        self.check(self.lib.ncclGroupStart())
        for rank, comm in zip(ranks, comms, strict=True):
            self.use(rank)
            self.check(self.lib.ncclCommInitRank(ctypes.byref(comm), self.total, unique, rank))
        self.check(self.lib.ncclGroupEnd())
        return [Member(self, rank, comm) for rank, comm in zip(ranks, comms, strict=True)]

    def staged_calls(self) -> list[Any]:
        """Returns errors, kernels that ran, and leftovers. Each rank has a thread, unless one thread drives all."""
        mine, wrong = self.by_owner(), list[str]()
        before, made = self.mock.mock_pieces(), Buffer.made

        teams = [mine] if self.given.get("grouped") else [[rank] for rank in mine]
        # Work that no thread of a process may do while another thread captures.
        together = threading.Barrier(len(teams))

        def run(ranks: Sequence[int]) -> None:
            one = type(self)(self.library, self.rank, self.nranks, self.folder, self.given)
            one.total, one.together = self.total, together
            try:
                wrong.extend(one.turns_of(one.members(ranks)))
            except Exception as error:
                wrong.append(repr(error))

        threads = [threading.Thread(target=run, args=(team,)) for team in teams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kernels = self.mock.mock_calls(b"launch") + self.mock.mock_calls(b"launch_cooperative")
        return [wrong, kernels, self.mock.mock_pieces() - before - (Buffer.made - made)]

    def turns_of(self, members: list[Member]) -> list[str]:
        """Calls by copies and by kernels in turn, each on what the one before has left, on streams that nothing but the
        library orders; then the same in a graph, which is launched again with other data."""
        wrong, count = [], self.given["count"]
        for turn in range(self.given.get("turns", 2)):
            wrong += self.one_turn(members, turn, count, in_place=turn % 2 == 1)
        if self.given.get("graphs"):
            wrong += self.in_graphs(members, count)
        if self.given.get("split"):
            for one in members:
                part = Comm()
                self.use(one.rank)
                self.check(self.lib.ncclCommSplit(one.comm, 0, -one.rank, ctypes.byref(part), None))
                wrong += self.one_turn([Member(self, one.rank, part)], 0, count, places=range(self.total)[::-1])
                self.check(self.lib.ncclCommDestroy(part))
        for one in members:
            self.check(self.lib.ncclCommDestroy(one.comm))
        return wrong

    def rooms(self, one: Member, count: int) -> list[Buffer]:
        n = self.total
        return [one.room(count), *(one.room(n * count) for _ in range(3))]

    def steps(self, rooms: list[Buffer], rank: int, count: int, in_place: bool) -> list[tuple[str, int, int, int]]:
        """An all_reduce into the rank's block, an all_gather of that, a broadcast, and an all_reduce of the result."""
        n, (first, gathered, sent, again) = self.total, rooms
        block = gathered.at + 4 * count * rank if in_place else again.at
        target = gathered if in_place else sent
        return [
            ("all_reduce", first.at, block, count),
            ("all_gather", block, gathered.at, count),
            ("broadcast", gathered.at, target.at, n * count),
            ("all_reduce", target.at, again.at, n * count),
        ]

    def put(
        self, members: list[Member], rooms: list[list[Buffer]], count: int, in_place: bool, places: Sequence[int]
    ) -> None:
        for number in range(4):
            calls = []
            for one, mine in zip(members, rooms, strict=True):
                step = self.steps(mine, places[one.rank], count, in_place)[number]
                calls.append(partial(one.call, *step, one.streams[number % 2]))
            self.group(*calls)

    def expected(self, tag: int, count: int) -> Array:
        total = np.asarray(sum(self.data(rank, count, tag) for rank in range(self.total)))
        return np.asarray(self.total * np.tile(total, self.total), np.float32)

    def one_turn(
        self, members: list[Member], tag: int, count: int, in_place: bool = False, places: Sequence[int] = range(64)
    ) -> list[str]:
        rooms = [self.rooms(one, count) for one in members]
        for one, mine in zip(members, rooms, strict=True):
            mine[0].set(self.data(one.rank, count, tag))
        self.put(members, rooms, count, in_place, places)
        wrong = []
        for one, mine in zip(members, rooms, strict=True):
            for stream in one.streams:
                self.wait(stream)
            if not np.array_equal(mine[3].get(), self.expected(tag, count)):
                wrong.append(f"turn {tag}, rank {one.rank}")
        return wrong

    def in_graphs(self, members: list[Member], count: int) -> list[str]:
        wrong, graphs, rooms = [], [], [self.rooms(one, count) for one in members]
        self.together.wait(60)
        for one in members:
            self.cuda(self.mock.cuStreamBeginCapture_v2(one.streams[0], 0))
            one.streams.append(one.streams[1])
            one.streams[1] = one.streams[0]
        self.put(members, rooms, count, True, range(self.total))
        for one in members:
            graphs.append(self.end_capture(one.streams[0]))
            one.streams[1] = one.streams.pop()
        self.together.wait(60)
        for tag in range(10, 13):
            for one, mine, graph in zip(members, rooms, graphs, strict=True):
                mine[0].set(self.data(one.rank, count, tag))
                self.cuda(self.mock.cuGraphLaunch(graph, one.streams[tag % 2]))
            wrong += [] if tag == 12 else self.one_turn(members, tag, count)
            for one, mine in zip(members, rooms, strict=True):
                for stream in one.streams:
                    self.wait(stream)
                if not np.array_equal(mine[3].get(), self.expected(tag, count)):
                    wrong.append(f"graph {tag}, rank {one.rank}")
        # Memory that a graph uses stays until its last instance is destroyed.
        for graph in graphs:
            self.cuda(self.mock.cuGraphExecDestroy(graph))
        return wrong

    def slot_policies(self) -> list[str]:
        """Where the system keeps host memory of a file, as it says itself."""
        self.total = self.nranks
        (one,) = self.members([self.rank])
        said = [
            line.split()[1]
            for line in Path("/proc/self/numa_maps").read_text().splitlines()
            if self.given["file"] in line
        ]
        self.check(self.lib.ncclCommDestroy(one.comm))
        return said

    def waiting_copies(self) -> dict[str, Any]:
        """Rank 0 gathers with others that never call: until its time is over, it aborts, or one of them goes."""
        self.total, how = self.nranks, self.given["how"]
        (one,) = self.members([self.rank])
        block, room, stream = one.room(300), one.room(900), one.streams[0]
        begin = partial(one.call, "all_gather", block.at, room.at, 300, stream)
        if self.rank != 0:
            self.hear("stands")
            if self.rank == 1 and how == "kill":
                self.say("end-1")
                os.kill(os.getpid(), signal.SIGKILL)
            if self.rank == 1 and how == "leave":
                self.check(self.lib.ncclCommDestroy(one.comm))
                return {}
            self.until(lambda: self.error(one.comm) != 0)
        elif self.given.get("graph"):
            graph = self.captured(stream, lambda: self.check(begin()))
            self.cuda(self.mock.cuGraphLaunch(graph, stream))
        else:
            self.check(begin())
        said: dict[str, Any] = {}
        if self.rank == 0:
            time.sleep(0.3)
            said["stands"] = self.mock.cuStreamQuery(stream)
            self.say("stands")
            start = time.monotonic()
            if how == "abort":
                self.check(self.lib.ncclCommAbort(one.comm))
            else:
                self.until(lambda: self.error(one.comm) != 0)
            self.wait(stream)
            said["soon"] = time.monotonic() - start < 10
            said["text"] = self.text()
            said["kernels"] = self.mock.mock_calls(b"launch")
        if how != "abort" or self.rank != 0:
            self.check(self.lib.ncclCommAbort(one.comm))
        if how not in ("kill", "leave"):
            said["wrong"] = self.one_turn(again := self.members([self.rank], "again"), 5, 300)
            self.check(self.lib.ncclCommDestroy(again[0].comm))
        return said
