"""Calls of a library with the class net inside a server, on the mock driver, while a connection of a card is lost."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress

from mock_classes import WeightedCalls

from collc.bench.data import TYPES, Case
from collc.collectives.model import Collective
from collc.errors import RunError


def end_tcp_connections() -> None:
    """Ends all TCP connections of this process. They belong to NICs, because ranks of a server use local sockets."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family == socket.AF_INET:
                one.shutdown(socket.SHUT_RDWR)


class LostWires(WeightedCalls):
    def case(self) -> Case:
        return Case(Collective.ALL_REDUCE, self.nranks, 1, 2000, TYPES["float"], "sum")

    def wire_lost_between_calls(self) -> list[str]:
        """The connections of rank 1's card end before the third call; what was wrong.

        Graphs that hold the class are captured before, and calls go on when the rank has said so in its log.
        """
        comm, stream, wrong = self.comm(), self.stream(), []
        run, result = self.prepared(self.case(), comm, stream, in_place=False)
        with self.overheard() as said:
            ready = self.captured(stream, run)
            for call in range(5):
                if call == 2:
                    self.meet("before")
                    if self.rank == 1:
                        end_tcp_connections()
                    self.until(lambda: b"hold net, which has failed: capture them again" in said())
                run()
                self.wait(stream)
                if not result():
                    wrong.append(f"call {call}")
        self.meet("after")
        if self.given.get("replay"):
            self.cuda(self.mock.cuGraphLaunch(ready, stream))
            self.until(lambda: self.error(comm) not in (0, 7))
            wrong.append(self.why_broken(run))
            self.comms = [other for other in self.comms if other is not comm]
            self.check(self.lib.ncclCommAbort(comm))
        else:
            self.destroy(comm)
        return wrong

    def wire_lost_amid_a_call(self) -> str:
        """The same while a call waits for the last rank, which comes then; what the call's communicator says."""
        comm, stream = self.comm(), self.stream()
        run, result = self.prepared(self.case(), comm, stream, in_place=False)
        run()
        self.wait(stream)
        assert result()
        with self.overheard() as said:
            if self.rank != self.nranks - 1:
                run()
            self.meet("begun")
            if self.rank == 1:
                end_tcp_connections()
                self.until(lambda: b"net has failed" in said())
            self.meet("lost")
            if self.rank == self.nranks - 1:
                run()
            self.until(lambda: self.error(comm) not in (0, 7))
        text = self.why_broken(run)
        self.comms = [other for other in self.comms if other is not comm]
        self.check(self.lib.ncclCommAbort(comm))
        return text

    def why_broken(self, run: Callable[[], None]) -> str:
        """Returns the error of a call on a broken communicator."""
        try:
            run()
        except RunError as error:
            return str(error)
        return ""
