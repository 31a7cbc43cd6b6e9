"""Scenarios of calls of several communicators on streams that nothing orders (see mock_scenarios.py)."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import partial

from mock_job import Buffer, Comm
from mock_order import Call, Ordered


class LaunchOrders(Ordered):
    def late_event(self) -> tuple[ctypes.c_void_p, Callable[[], None]]:
        """Returns an event behind calls between two other GPUs, and a function that lets these calls end."""
        others = [device for device in range(3) if device != self.rank]
        made, devices = (ctypes.c_void_p * 2)(), (ctypes.c_int * 2)(*others)
        self.nccl.check(self.lib.ncclCommInitAll(made, 2, devices), "ncclCommInitAll")
        event, calls = ctypes.c_void_p(), []
        for rank in range(2):
            self.use(others[rank])
            calls.append((self.summand(50, rank), ctypes.c_void_p(made[rank]), self.stream()))
        self.use(others[0])
        self.call(*calls[0])
        self.cuda(self.mock.cuEventCreate(ctypes.byref(event), 2))
        self.cuda(self.mock.cuEventRecord(event, calls[0][2]))
        self.use(self.rank)

        def go_on() -> None:
            self.use(others[1])
            self.call(*calls[1])
            self.use(self.rank)

        return event, go_on

    def replay(self, graph: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
        self.cuda(self.mock.cuGraphLaunch(graph, stream))

    def get_done(self, streams: Sequence[ctypes.c_void_p]) -> bool:
        start = time.monotonic()
        while any(self.mock.cuStreamQuery(stream) for stream in streams):
            if time.monotonic() - start > self.given["patience"]:
                return False
            time.sleep(0.01)
        return True

    def communicators_on_two_streams(self) -> str:
        """A call of each of two communicators, in the same order on all ranks; a GPU holds the blocks of one call.

        On rank 0 the first stream is held up until the second call could long have begun.
        """
        comms, streams, calls = [self.comm(name) for name in "xy"], [self.stream(), self.stream()], []
        for tag in range(2):
            calls.append(self.summand(400, tag))
        graphs = self.given.get("graphs")
        runs = [partial(self.call, calls[c], comms[c], streams[c]) for c in range(2)]
        if graphs == "two":
            made = [self.captured(streams[c], runs[c]) for c in range(2)]
            runs = [partial(self.replay, made[c], streams[c]) for c in range(2)]
        elif graphs == "mixed":  # the first call is in a graph, the second one is not
            one = self.captured(streams[0], runs[0])
            runs[0] = partial(self.replay, one, streams[0])
        elif graphs == "mixed the other way":
            one = self.captured(streams[1], runs[1])
            runs[1] = partial(self.replay, one, streams[1])
        event, go_on = self.late_event() if self.rank == 0 else (None, lambda: None)
        self.meet("ready")
        if event is not None:
            self.cuda(self.mock.cuStreamWaitEvent(streams[0], event, 0))
        for run in runs:
            run()
            time.sleep(0.3)
        go_on()
        if not self.get_done(streams):
            return "stuck"
        return "right" if self.summed(calls) else "wrong"

    def one_graph_of_two_communicators(self) -> str:
        """Both calls in one graph, on two branches; the first one is held up on rank 0, the second one elsewhere."""
        comms, streams, event = [self.comm(name) for name in "xy"], [self.stream(), self.stream()], ctypes.c_void_p()
        calls = [self.summand(400, tag) for tag in range(2)]
        late, go_on = self.late_event()
        self.cuda(self.mock.cuEventCreate(ctypes.byref(event), 2))

        def body() -> None:
            self.cuda(self.mock.cuEventRecord(event, streams[0]))
            self.cuda(self.mock.cuStreamWaitEvent(streams[1], event, 0))
            self.cuda(self.mock.cuStreamWaitEvent(streams[self.rank != 0], late, 1))
            for c in range(2):
                self.call(calls[c], comms[c], streams[c])
            self.cuda(self.mock.cuEventRecord(event, streams[1]))
            self.cuda(self.mock.cuStreamWaitEvent(streams[0], event, 0))

        graph = self.captured(streams[0], body)
        self.meet("ready")
        self.replay(graph, streams[0])
        time.sleep(0.3)
        go_on()
        if not self.get_done(streams[:1]):
            return "stuck"
        return "right" if self.summed(calls) else "wrong"

    def ring_of_pairs(self) -> str:
        """Each rank sends to the next rank, then receives from the rank before. Each pair has a separate communicator.

        The ranks use the communicators in different orders, but all their kernels run at once.
        """
        pairs, streams, rooms = self.pairs(), [self.stream(), self.stream()], []
        after, before, count = (self.rank + 1) % self.nranks, (self.rank - 1) % self.nranks, 20000
        rooms.append(self.room(count))
        to = pairs[frozenset({self.rank, after})]
        of = pairs[frozenset({self.rank, before})]
        peer = [sorted({self.rank, other}).index(other) for other in (after, before)]
        self.check(self.send(self.buffer(self.data(self.rank, count)), peer[0], to, streams[0]))
        self.check(self.recv(rooms[0], peer[1], of, streams[1]))
        if not self.get_done(streams):
            return "stuck"
        return "right" if bool((rooms[0].get() == self.data(before, count)).all()) else "wrong"

    def pairs(self) -> dict[frozenset[int], Comm]:
        made = {}
        for one in range(self.nranks):
            for other in range(one + 1, self.nranks):
                if self.rank in (one, other):
                    made[frozenset({one, other})] = self.comm(f"{one}-{other}", [one, other])
        return made

    def threads_in_turn(self) -> str:
        """Threads call one after the other: transfers and collectives of several communicators on many streams."""
        comms = [self.comm(f"of-{c}") for c in range(4)]
        streams, calls, got = [self.stream() for _ in range(8)], list[Call](), list[Buffer]()
        after, before = (self.rank + 1) % self.nranks, (self.rank - 1) % self.nranks
        for turn in range(16):
            comm, stream = comms[turn * 7 % 4], streams[turn * 5 % 8]
            if turn % 3 == 2:
                got.append(self.room(300))
                sent = self.buffer(self.data(self.rank, 300, turn))
                way = partial(self.send, sent, after, comm, stream), partial(self.recv, got[-1], before, comm, stream)
                self.in_threads(partial(self.group, *way))
            else:
                calls.append(self.summand(100 + turn, turn))
                self.in_threads(partial(self.call, calls[-1], comm, stream))
        if not self.get_done(streams):
            return "stuck"
        expected = [self.data(before, 300, turn) for turn in range(16) if turn % 3 == 2]
        right = all(bool((room.get() == one).all()) for room, one in zip(got, expected, strict=True))
        return "right" if right and self.summed(calls) else "wrong"
