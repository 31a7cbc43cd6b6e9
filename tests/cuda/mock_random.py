"""Random jobs (see mock_scenarios.py): what programs with several kinds of parallelism do, one after the other."""

from __future__ import annotations

import ctypes
import random
from functools import partial

from mock_job import Comm
from mock_transfers import Transfers

NO_COLOR = -1

# Methods of a job. Each returns True or [] if all is right.
SHAPES = (
    "pipeline",
    "experts",
    "ring_attention",
    "coalesced",
    "split_and_shrink",
    "two_in_a_group",
    "transfers_of_two_in_a_group",
    "neighbors",
    "crossed",
    "many_to_one",
    "collectives",
    "creation_beside_a_waiting_kernel",
    "random_transfers_of_one_seed",
)


class RandomJobs(Transfers):
    def random_jobs(self) -> list[str]:
        """Returns the errors by seed. Each seed chooses a shape and its sizes."""
        wrong = []
        for seed in self.given["seeds"]:
            shape = SHAPES[seed % len(SHAPES)]
            self.prefix, self.chance = f"{seed}-", random.Random(seed)
            answer = getattr(self, shape)()
            if answer is not True and answer != []:
                wrong.append(f"{seed} {shape}: {answer}")
            for comm in list(self.comms):
                self.destroy(comm)
        self.prefix = ""
        return wrong

    def random_transfers_of_one_seed(self) -> list[int]:
        self.given["seeds"] = [self.chance.randrange(1 << 30)]
        return self.random_transfers()

    def split_and_shrink(self) -> bool:
        """Parts of a communicator come and go while it is used; then all but one go on without that one."""
        comm, stream, everybody = self.comm(), self.stream(), list(range(self.nranks))
        right = self.sums_are_right(comm, self.sized(300), stream)
        for _ in range(3):
            colors = [self.chance.choice((0, 0, 1, NO_COLOR)) for _ in everybody]
            keys, count = [self.chance.randrange(4) for _ in everybody], self.sized(200)
            passed = self.pass_on(comm, stream, everybody, count)
            part, mine = Comm(), colors[self.rank]
            self.check(self.lib.ncclCommSplit(comm, mine, keys[self.rank], ctypes.byref(part), None))
            right &= passed() and (part.value is not None) == (mine != NO_COLOR)
            if part.value is None:
                continue
            members = sorted((rank for rank in everybody if colors[rank] == mine), key=lambda rank: (keys[rank], rank))
            right &= self.part_is_right(part, members, count)
            self.check(self.lib.ncclCommDestroy(part))
        without = self.chance.choice(everybody)
        count = self.sized(200)
        if self.rank != without:
            part, left_out = Comm(), (ctypes.c_int * 1)(without)
            self.check(self.lib.ncclCommShrink(comm, left_out, 1, ctypes.byref(part), None, 0))
            right &= self.part_is_right(part, [rank for rank in everybody if rank != without], count)
            self.check(self.lib.ncclCommDestroy(part))
        return right and self.sums_are_right(comm, count, stream)

    def part_is_right(self, part: Comm, members: list[int], count: int) -> bool:
        stream, rank = self.stream(), ctypes.c_int(-1)
        self.check(self.lib.ncclCommUserRank(part, ctypes.byref(rank)))
        if members[rank.value] != self.rank or not self.sums_are_right(part, count, stream, members):
            return False
        return self.pass_on(part, stream, members, count)()

    def pass_on(self, comm: Comm, stream: ctypes.c_void_p, members: list[int], count: int) -> partial[bool]:
        """Begins to send to the next rank of a communicator; what is returned waits, and says whether all is right."""
        at, n = members.index(self.rank), len(members)
        after, before, room = (at + 1) % n, (at - 1) % n, self.room(count)
        sent = self.buffer(self.data(self.rank, count, 5))
        self.group(partial(self.send, sent, after, comm, stream), partial(self.recv, room, before, comm, stream))

        def passed() -> bool:
            self.wait(stream)
            return self.got(room, members[before], count, 5)

        return partial(passed)
