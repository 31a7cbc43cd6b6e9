"""Communicators that grow (see mock_scenarios.py)."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import numpy as np
from mock_job import FLOAT, Comm, Job

from collc.bench.nccl import UniqueId

COUNT = 77


class Growing(Job):
    def grows(self) -> list[bool]:
        """A communicator of the first ranks grows by the next ones, again and again: whether each of them is right."""
        sizes, comm, said = self.given["sizes"], None, []
        if self.rank < sizes[0]:
            comm = self.comm("first", list(range(sizes[0])))
            said.append(self.is_of(comm, list(range(sizes[0]))))
        for before, size in pairwise(sizes):
            members = list(range(size))
            if self.rank < size:
                comm = self.grow(comm, members[:before], members)
                said.append(self.is_of(comm, members))
        return said

    def split_and_grow(self) -> list[bool]:
        """Four ranks split in two, in another order; each half grows by two ranks while the other one does."""
        said, mine, part = [], self.rank % 2, None
        old, new = [2 + mine, mine], [4 + mine, 6 + mine]
        if self.rank < 4:
            whole, part = self.comm("first", [0, 1, 2, 3]), Comm()
            self.check(self.lib.ncclCommSplit(whole, mine, -self.rank, ctypes.byref(part), None))
            said.append(self.is_of(part, old))
        grown = self.grow(part, old, old + new)
        said.append(self.is_of(grown, old + new))
        if self.rank < 4:
            said.append(self.is_of(whole, [0, 1, 2, 3]))
        return said

    def grow(self, comm: Comm | None, old: list[int], members: list[int]) -> Comm:
        """Its first rank asks for the id; the old communicator ends when the new one is there."""
        made, unique, file = Comm(), UniqueId(), f"id-{'-'.join(map(str, members))}"
        if self.rank == old[0]:
            self.check(self.lib.ncclCommGetUniqueId(comm, ctypes.byref(unique)))
            self.say(file, bytes(unique))
        elif self.rank not in old:
            unique = UniqueId.from_buffer_copy(self.hear(file))
        given = None if self.rank in old[1:] else ctypes.byref(unique)
        rank = -1 if self.rank in old else members.index(self.rank)
        self.check(self.lib.ncclCommGrow(comm, len(members), given, rank, ctypes.byref(made), None))
        if comm is not None:
            self.check(self.lib.ncclCommDestroy(comm))
        return made

    def is_of(self, comm: Comm, members: list[int]) -> bool:
        """Returns whether `members` are the communicator's ranks, in this order, and its calls are right."""
        rank, nranks, stream = ctypes.c_int(-1), ctypes.c_int(-1), self.stream()
        self.check(self.lib.ncclCommUserRank(comm, ctypes.byref(rank)))
        self.check(self.lib.ncclCommCount(comm, ctypes.byref(nranks)))
        if [nranks.value, members[rank.value]] != [len(members), self.rank]:
            return False
        sent, gathered = self.buffer(self.data(self.rank, COUNT, 3)), self.room(COUNT * len(members))
        self.check(self.lib.ncclAllGather(sent.at, gathered.at, COUNT, FLOAT, comm, stream))
        self.wait(stream)
        expected = np.concatenate([self.data(member, COUNT, 3) for member in members])
        return bool(np.array_equal(gathered.get(), expected)) and self.sums_are_right(comm, COUNT, stream, members)
