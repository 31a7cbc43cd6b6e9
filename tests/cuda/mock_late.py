"""Scenarios in which a communicator cannot be made for a reason that shows late (see mock_scenarios.py)."""

from __future__ import annotations

import ctypes

import numpy as np
from mock_job import Comm, Job

from collc.bench.nccl import UniqueId

COUNT = 16
PLANTED = 1  # the rank whose driver fails


class LateFailures(Job):
    def failing_steps(self) -> list[list[str]]:
        """Every call of the driver that rank 1 makes while a communicator is made fails once, in their order.

        Returns the name of each call, and who serves the communicator then: "ours", "theirs", or what the error says.
        """
        self.mock.mock_failed.restype = ctypes.c_char_p
        said: list[list[str]] = []
        before = 0
        while True:
            number = len(said)
            if self.rank == PLANTED:
                self.mock.mock_fail_after(before)
            outcome = self.served_by(f"step-{number}")
            if self.rank == PLANTED:
                self.say(f"failed-{number}", self.failed)
            name = self.hear(f"failed-{number}").decode()
            if not name:
                return [*said, ["", outcome]]
            # Once the kernels are there, nobody loads them again: the calls after that have another number then.
            if not (said and said[-1][0] == "load"):
                before += 1
            said.append([name, outcome])

    def served_by(self, name: str) -> str:
        if self.rank == 0:
            self.say(f"id-{name}", self.nccl.unique_id())
        unique, comm = UniqueId.from_buffer_copy(self.hear(f"id-{name}")), Comm()
        code = self.lib.ncclCommInitRank(ctypes.byref(comm), self.nranks, unique, self.rank)
        self.failed = bytes(self.mock.mock_failed())
        self.mock.mock_fail_after(-1)
        if code:
            return self.text()
        send, recv = self.buffer(self.data(self.rank, COUNT)), self.room(COUNT)
        self.check(self.all_reduce(send, recv, comm))
        self.wait(None)
        self.check(self.lib.ncclCommDestroy(comm))
        if recv.get().tobytes()[0] == 7:  # so does the one that plays the real NCCL
            return "theirs"
        expected = sum(self.data(rank, COUNT) for rank in range(self.nranks))
        return "ours" if np.array_equal(recv.get(), expected) else "wrong"
