"""Scenarios of communicators whose creation fails late (see mock_scenarios.py)."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from mock_job import Buffer, Comm, Job

from collc.bench.nccl import UniqueId

COUNT = 16
PLANTED = 1  # the rank whose driver fails


class LateFailures(Job):
    first_left: dict[str, int] | None = None  # once a communicator has been served
    seconds: ClassVar[list[float]] = []  # of creations

    def failing_steps(self) -> list[list[str]]:
        """Every call of the driver that rank 1 makes while a communicator is made fails once, in their order.

        Returns the name of each call, and who serves the communicator then: "ours", "theirs", or what the error says.
        """
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

    def left_by_failing_steps(self) -> dict[str, Any]:
        """The answers of these creations, the seconds of each, and the holdings of this process after them."""
        return {"said": self.failing_steps(), "seconds": self.seconds, **self.left()}

    def left_by_communicators(self) -> dict[str, Any]:
        """Returns the resources that remain after communicators were used and destroyed."""
        said = []
        for number in range(6):
            said.append(self.served_by(f"one-{number}"))
            self.meet(f"done-{number}")
        return {"said": said, **self.left()}

    def left(self) -> dict[str, Any]:
        """How much more this process holds than after the first one that was served, once nothing is freed any more."""
        deadline = time.monotonic() + 10
        while (now := self.holdings())["pieces"] > 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.first_left is not None
        return {"more": {what: now[what] - self.first_left[what] for what in now}, "pieces": now["pieces"]}

    def holdings(self) -> dict[str, int]:
        """Pieces of the driver's memory beside the job's own, maps, descriptors and threads."""
        held = {what: len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")}
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return {"pieces": self.mock.mock_pieces() - Buffer.made, "maps": len(maps), **held}

    def failing_system_calls(self) -> list[list[str]]:
        """The same with each call of the system that one rank makes, of those in system_faults.c."""
        system = ctypes.CDLL(None)
        said: list[list[str]] = [["nothing", self.served_by("before")]]  # the driver and its thread are there now
        for call in self.given["calls"]:
            for number in range(100):
                name = f"{call}-{number}"
                if self.rank == self.given["planted"]:
                    system.plant_fault(call.encode(), number)
                outcome = self.served_by(name)
                if self.rank == self.given["planted"]:
                    self.say(f"failed-{name}", b"1" if system.end_of_fault() else b"0")
                if self.hear(f"failed-{name}") == b"0":
                    break
                said.append([name, outcome])
        return [*said, ["nothing", self.served_by("after")]]

    def served_by(self, name: str) -> str:
        if self.rank == 0:
            self.say(f"id-{name}", self.nccl.unique_id())
        unique, comm = UniqueId.from_buffer_copy(self.hear(f"id-{name}")), Comm()
        start = time.monotonic()
        code = self.lib.ncclCommInitRank(ctypes.byref(comm), self.nranks, unique, self.rank)
        self.seconds.append(time.monotonic() - start)
        self.mock.mock_failed.restype = ctypes.c_char_p
        self.failed = bytes(self.mock.mock_failed())
        self.mock.mock_fail_after(-1)
        if code:
            return self.text()
        send, recv = self.buffer(self.data(self.rank, COUNT)), self.room(COUNT)
        self.check(self.all_reduce(send, recv, comm))
        self.wait(None)
        self.check(self.lib.ncclCommDestroy(comm))
        if self.first_left is None:
            self.first_left = self.holdings()
        if recv.get().tobytes()[0] == 7:  # so does the one that plays the real NCCL
            return "theirs"
        expected = sum(self.data(rank, COUNT) for rank in range(self.nranks))
        return "ours" if np.array_equal(recv.get(), expected) else "wrong"
