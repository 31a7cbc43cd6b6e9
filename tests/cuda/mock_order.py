"""Scenarios of the order of a communicator's calls (see mock_scenarios.py): streams, their handles, graphs."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mock_job import Buffer, Comm, Job

LEGACY, PER_THREAD = ctypes.c_void_p(1), ctypes.c_void_p(2)
Call = tuple[Buffer, Buffer, int]  # what it sends, where its result comes, its tag


def sizes(*numbers: int) -> list[ctypes.c_ulonglong]:
    return [ctypes.c_ulonglong(number) for number in numbers]


class Ordered(Job):
    def summand(self, count: int, tag: int) -> Call:
        """Buffers of an all_reduce."""
        return self.buffer(self.data(self.rank, count, tag)), self.room(count), tag

    def summed(self, calls: Sequence[Call]) -> bool:
        """Returns whether all_reduces are right."""
        return all(
            np.array_equal(room.get(), sum(self.data(rank, room.like.size, tag) for rank in range(self.nranks)))
            for _, room, tag in calls
        )

    def call(self, call: Call, comm: Comm, stream: ctypes.c_void_p | None) -> None:
        self.check(self.all_reduce(call[0], call[1], comm, stream))

    def call_all(self, calls: Sequence[Call], comm: Comm, stream: ctypes.c_void_p | None) -> None:
        for one in calls:
            self.call(one, comm, stream)

    def graphs_on_two_streams(self) -> list[bool]:
        """Two graphs of one communicator and calls outside of graphs, on three streams that nothing else orders."""
        comm, streams, right = self.comm(), [self.stream() for _ in range(3)], []
        calls = [self.summand(count, tag) for tag, count in enumerate((900, 40, 500, 300))]
        first = self.captured(streams[0], lambda: self.call_all(calls[:2], comm, streams[0]))
        second = self.captured(streams[1], lambda: self.call(calls[2], comm, streams[1]))
        for turn in range(self.given.get("turns", 4)):
            for _, room, _ in calls:
                room.set(np.full(room.like.size, -1, dtype=np.float32))
            order = [lambda: self.cuda(self.mock.cuGraphLaunch(first, streams[0]))]
            order.append(lambda: self.cuda(self.mock.cuGraphLaunch(second, streams[1])))
            order.append(lambda: self.call(calls[3], comm, streams[2]))
            for step in range(3):
                order[(step + turn) % 3]()
            for stream in streams:
                self.wait(stream)
            right.append(self.summed(calls))
        self.destroy(comm)
        return right

    def graphs_of_threads(self) -> list[str]:
        """Three ranks in this process, each a thread with a graph; what is wrong.

        Around each launch of the graph, on its stream, its input comes and is overwritten.
        """
        wrong, turns = list[str](), self.given["turns"]
        # No thread allocates or copies while another one captures, which captures of this mode forbid.
        together = threading.Barrier(3)

        def rank_of(one: Ordered, rank: int, comm: Comm, stream: ctypes.c_void_p) -> None:
            calls = [one.summand(count, tag) for tag, count in enumerate((900, 40, 500))]
            together.wait(60)
            graph = one.captured(stream, partial(one.call_all, calls, comm, stream))
            together.wait(60)
            kept = [one.buffer(sent.like) for sent, _, _ in calls]
            for turn in range(turns):
                for (sent, room, _), content in zip(calls, kept, strict=True):
                    room.set(np.full(room.like.size, -1, dtype=np.float32))
                    one.cuda(one.mock.cuMemcpyAsync(*sizes(sent.at, content.at, sent.like.nbytes), stream))
                one.cuda(one.mock.cuGraphLaunch(graph, stream))
                for sent, _, _ in calls:
                    at, size = sizes(sent.at, sent.like.nbytes)
                    one.cuda(one.mock.cuMemsetD8Async(at, 0x55, size, stream))
                one.wait(stream)
                if not one.summed(calls):
                    wrong.append(f"rank {rank}, turn {turn}")

        failed = self.as_threads(3, rank_of)
        return wrong + failed

    def graphs_captured_in_turn(self) -> bool:
        """Two graphs whose captures overlap, each with calls on two streams."""
        comm, right = self.comm(), True
        origins, others, event = [self.stream(), self.stream()], [self.stream(), self.stream()], ctypes.c_void_p()
        self.cuda(self.mock.cuEventCreate(ctypes.byref(event), 2))
        calls = [self.summand(200 + 100 * tag, tag) for tag in range(6)]
        for stream, other in zip(origins, others, strict=True):
            self.cuda(self.mock.cuStreamBeginCapture_v2(stream, 0))
            self.cuda(self.mock.cuEventRecord(event, stream))
            self.cuda(self.mock.cuStreamWaitEvent(other, event, 0))
        for turn, call in enumerate(calls):
            self.call(call, comm, (origins if turn < 4 and turn % 2 else others)[turn // 2 % 2])
        graphs = []
        for stream, other in zip(origins, others, strict=True):
            self.cuda(self.mock.cuEventRecord(event, other))
            self.cuda(self.mock.cuStreamWaitEvent(stream, event, 0))
            graphs.append(self.end_capture(stream))
        for _ in range(3):
            for graph, stream in zip(graphs, origins, strict=True):
                self.cuda(self.mock.cuGraphLaunch(graph, stream))
            for stream in origins:
                self.wait(stream)
            right &= self.summed(calls)
        return right

    def more_captures_than_are_remembered(self) -> bool:
        comm, stream, calls, graphs = self.comm(), self.stream(), [], []
        for tag in range(20):
            calls.append(self.summand(50 + tag, tag))
            graphs.append(self.captured(stream, lambda: self.call(calls[-1], comm, stream)))
        streams = [self.stream() for _ in graphs]
        for graph, own in zip(graphs, streams, strict=True):
            self.cuda(self.mock.cuGraphLaunch(graph, own))
        for own in streams:
            self.wait(own)
        return self.summed(calls)

    def ended_behind_a_graph(self) -> bool:
        """A communicator ends when the graph with its calls has run, though nobody has waited for that."""
        comm, stream, call = self.comm(), self.stream(), self.summand(500, 0)
        graph = self.captured(stream, lambda: self.call(call, comm, stream))
        self.cuda(self.mock.cuGraphLaunch(graph, stream))
        self.destroy(comm)
        return self.summed([call])

    def in_threads(self, *bodies: Callable[[], None]) -> None:
        """Runs each body in a new thread, one after the other. The threads stay until all have run."""
        device, ended, failures = ctypes.c_void_p(), threading.Event(), []
        self.cuda(self.mock.cuCtxGetCurrent(ctypes.byref(device)))

        def run(body: Callable[[], None], done: threading.Event) -> None:
            try:
                self.mock.cuCtxSetCurrent(device)
                body()
            except RuntimeError as error:
                failures.append(error)
            done.set()
            ended.wait()

        threads = []
        for body in bodies:
            done = threading.Event()
            threads.append(threading.Thread(target=run, args=(body, done)))
            threads[-1].start()
            done.wait()
        ended.set()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def streams_of_threads(self) -> bool:
        """Threads call one after the other, each on its own default stream; all have the same handle."""
        comm, calls = self.comm(), [self.summand(count, tag) for tag, count in enumerate((900, 30, 600, 20, 700))]
        self.in_threads(*[lambda one=one: self.call(one, comm, PER_THREAD) for one in calls])
        self.cuda(self.mock.cuCtxSynchronize())
        self.destroy(comm)
        return self.summed(calls)

    def reused_streams(self) -> bool:
        """A stream is destroyed behind a call that runs, and a new one gets its handle."""
        comm, calls, handles = self.comm(), [], set()
        for tag, count in enumerate((900, 30, 600, 20, 700)):
            calls.append(self.summand(count, tag))
            stream = self.stream()
            handles.add(stream.value)
            self.call(calls[-1], comm, stream)
            self.cuda(self.mock.cuStreamDestroy_v2(stream))
        assert len(handles) == 1
        self.cuda(self.mock.cuCtxSynchronize())
        self.destroy(comm)
        return self.summed(calls)

    def legacy_stream(self) -> bool:
        """Calls on the legacy stream by both of its handles, and on streams that it waits for or does not."""
        comm = self.comm()
        streams = [None, self.stream(0), LEGACY, self.stream(1), None, PER_THREAD]
        calls = [self.summand(count, tag) for tag, count in enumerate((700, 30, 500, 40, 600, 20))]
        for call, stream in zip(calls, streams, strict=True):
            self.call(call, comm, stream)
        # A copy without a stream waits for the legacy stream and those that block it.
        like = calls[5][1].like
        host = ctypes.create_string_buffer(like.nbytes)
        self.cuda(self.mock.cuMemcpyDtoH_v2(host, ctypes.c_ulonglong(calls[5][1].at), ctypes.c_size_t(like.nbytes)))
        self.destroy(comm)
        return self.summed(calls)

    def equal_handles_of_gpus(self) -> list[bool]:
        """Three ranks of one process on three GPUs: the same handle on each, in groups and one by one."""
        made, right = (ctypes.c_void_p * 3)(), []
        self.nccl.check(self.lib.ncclCommInitAll(made, 3, None), "ncclCommInitAll")
        comms = [ctypes.c_void_p(one) for one in made]
        for stream in (None, LEGACY, PER_THREAD):
            rooms = []
            for grouped in (True, False):
                if grouped:
                    self.check(self.lib.ncclGroupStart())
                for rank in range(3):
                    self.use(rank)
                    rooms.append((rank, self.buffer(self.data(rank, 300)), self.room(300)))
                    self.check(self.all_reduce(*rooms[-1][1:], comms[rank], stream))
                if grouped:
                    self.check(self.lib.ncclGroupEnd())
            for rank in range(3):
                self.use(rank)
                self.wait(stream)
            expected = sum(self.data(rank, 300) for rank in range(3))
            right.append(all(np.array_equal(room.get(), expected) for _, _, room in rooms))
        return right

    # Ends of processes.

    def left_without_destroy(self) -> Any:
        """Some ranks end as programs do that destroy nothing; the others have calls before and end as they should."""
        comm, stream = self.comm(), self.stream()
        right = self.sums_are_right(comm, stream=stream)
        if self.rank in self.given["leave"]:
            return right
        self.meet_those_that_stay()
        if self.given.get("call"):
            code = self.all_reduce(self.buffer(self.data(self.rank, 100)), self.room(100), comm, stream)
            if code == 0:
                self.until(lambda: self.error(comm) != 0)
            return [right, self.error(comm)]
        self.destroy(comm)
        return right

    def meet_those_that_stay(self) -> None:
        stay = [rank for rank in range(self.nranks) if rank not in self.given["leave"]]
        self.say(f"stays-{self.rank}")
        for rank in stay:
            self.hear(f"stays-{rank}")

    def forked(self) -> bool:
        """A child is forked amid calls and ends at once, or normally with the exit handlers of libraries."""
        comm, stream, call = self.comm(), self.stream(), self.summand(500, 0)
        self.call(call, comm, stream)
        child = os.fork()
        if child == 0:
            if self.given["end"] == "exit":
                ctypes.CDLL(None).exit(0)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        self.wait(stream)
        right = self.summed([call]) and self.sums_are_right(comm, stream=stream)
        self.destroy(comm)
        return right and status == 0

    def forked_amid_frees(self) -> int:
        """Children, of 300, that call ncclMemFree after other threads of their parent did so all the time."""
        return int(ctypes.CDLL(self.given["with"]).forked_children(self.lib.ncclMemFree, 300))

    def refused_in_a_child(self) -> str:
        """Returns the error of a child's call on its parent's communicator: a fork does not inherit GPUs."""
        comm, stream, (reads, writes) = self.comm(), self.stream(), os.pipe()
        assert self.sums_are_right(comm, stream=stream)
        send, recv = self.buffer(self.data(self.rank, 100)), self.room(100)
        child = os.fork()
        if child == 0:
            code = self.all_reduce(send, recv, comm, stream)
            os.write(writes, f"{code} {self.text()}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert self.sums_are_right(comm, stream=stream)
        self.destroy(comm)
        return os.read(reads, 1000).decode()
