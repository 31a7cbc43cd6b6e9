"""One rank of a job on the mock driver. mock_jobs.py runs this file as a process.

    mock_scenarios.py LIBRARY SCENARIO RANK NRANKS FOLDER [JSON]

SCENARIO is a method below; what it returns is printed as JSON, or {"error": ...}. FOLDER is shared by the ranks: unique
ids and signs that a rank has come somewhere are files in it.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mock_api import ApiCalls
from mock_cards import LostWires
from mock_frees import Frees
from mock_grow import Growing
from mock_habits import Habits
from mock_job import FLOAT, Buffer, Comm
from mock_large import LargeCalls
from mock_late import LateFailures
from mock_launch_order import LaunchOrders
from mock_lending import Lending
from mock_random import RandomJobs
from mock_rules import DriverRules
from mock_staged import StagedCalls

from collc.bench.data import OPS, TYPES, Case
from collc.bench.nccl import UniqueId
from collc.collectives.model import Collective


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


CALLS = {
    "all_reduce": "ncclAllReduce",
    "broadcast": "ncclBroadcast",
    "reduce": "ncclReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
}


class Scenarios(
    RandomJobs,
    Habits,
    ApiCalls,
    DriverRules,
    LateFailures,
    LaunchOrders,
    Frees,
    Lending,
    LostWires,
    Growing,
    LargeCalls,
    StagedCalls,
):
    def collectives(self) -> list[str]:
        """Every collective once; the wrong ones."""
        comm, stream, wrong = self.comm(), self.stream(), []
        for name in self.given.get("only", CALLS):
            op = "sum" if "reduce" in name else None
            case = Case(Collective(name), self.nranks, 1, self.given.get("count", 777), TYPES["float"], op)
            expected = case.expected(self.rank)
            send = self.buffer(case.send_data(self.rank))
            recv = self.room(case.recv_elements)
            middle = [*([OPS[op]] if op else []), *([1] if name in ("broadcast", "reduce") else [])]
            call = getattr(self.lib, CALLS[name])
            self.check(call(send.at, recv.at, case.count, FLOAT, *middle, comm, stream))
            self.wait(stream)
            if expected is not None and not np.array_equal(recv.get(), expected):
                wrong.append(name)
        self.destroy(comm)
        return wrong

    def made(self) -> bool:
        """A communicator, made and ended."""
        self.destroy(self.comm())
        return True

    def waiting_kernel(self, comm: Comm, stream: ctypes.c_void_p) -> None:
        """One kernel of rank 0 that waits for the others, until they call finish_kernel."""
        self.part = self.buffer(self.data(self.rank, 100)), self.room(100)
        self.check(self.all_reduce(*self.part, comm, stream))

    def what_the_driver_waits_for(self) -> dict[str, bool]:
        """Returns for each driver call whether it returned while a kernel waited on another stream."""
        comm, stream = self.comm(), self.stream(self.given.get("flags", 1))
        if self.rank == 1:
            own = ctypes.create_string_buffer(64)
            self.cuda(self.mock.cuIpcGetMemHandle(own, ctypes.c_ulonglong(self.room(100).at)))
            self.say("handle", own.raw)
        if self.rank != 0:
            self.hear("asked")
            self.waiting_kernel(comm, stream)
            self.wait(stream)
            return {}
        at, host, word = ctypes.c_ulonglong(), ctypes.c_void_p(), ctypes.create_string_buffer(16)
        self.cuda(self.mock.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(64)))
        self.cuda(self.mock.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(64), 0))
        other, module, more = self.stream(), ctypes.c_void_p(), ctypes.c_ulonglong()
        context = ctypes.c_void_p()
        self.cuda(self.mock.cuCtxGetCurrent(ctypes.byref(context)))
        page, opened = mmap.mmap(-1, 4096), ctypes.c_ulonglong()
        registered = ctypes.addressof(ctypes.c_char.from_buffer(page))
        self.cuda(self.mock.cuMemHostRegister_v2(ctypes.c_void_p(registered), ctypes.c_size_t(4096), 0))
        handle = IpcHandle.from_buffer_copy(self.hear("handle"))
        self.cuda(self.mock.cuIpcOpenMemHandle_v2(ctypes.byref(opened), handle, 1))
        self.waiting_kernel(comm, stream)
        size = ctypes.c_size_t
        calls: dict[str, Callable[[], int]] = {
            "alloc": lambda: int(self.mock.cuMemAlloc_v2(ctypes.byref(more), size(64))),
            "another stream": lambda: int(self.mock.cuStreamSynchronize(other)),
            "fill on another stream": lambda: int(self.mock.cuMemsetD8Async(at, 1, size(64), other)),
            "that stream": lambda: int(self.mock.cuStreamSynchronize(stream)),
            "all": lambda: int(self.mock.cuCtxSynchronize()),
            "upload": lambda: int(self.mock.cuMemcpyHtoD_v2(at, word, size(16))),
            "load": lambda: int(self.mock.cuModuleLoadData(ctypes.byref(module), None)),
            "free": lambda: int(self.mock.cuMemFree_v2(at)),
            "free host": lambda: int(self.mock.cuMemFreeHost(host)),
            "unpin": lambda: int(self.mock.cuMemHostUnregister(ctypes.c_void_p(registered))),
            "close": lambda: int(self.mock.cuIpcCloseMemHandle(opened)),
        }
        came_back = {name: self.comes_back(call, context) for name, call in calls.items()}
        self.say("asked")
        self.wait(stream)
        return came_back

    def comes_back(self, call: Callable[[], int], context: ctypes.c_void_p, seconds: float = 0.3) -> bool:
        """Returns whether a call ends in time. If not, it goes on in a thread."""

        def run() -> None:
            self.mock.cuCtxSetCurrent(context)
            call()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(seconds)
        return not thread.is_alive()

    # All ranks in one process.

    def all_here(self) -> tuple[list[Comm], list[ctypes.c_void_p], list[tuple[Buffer, Buffer]]]:
        """Three ranks on three GPUs: communicators, a stream and two buffers of each."""
        made = (ctypes.c_void_p * 3)()
        self.nccl.check(self.lib.ncclCommInitAll(made, 3, None), "ncclCommInitAll")
        streams, buffers = [], []
        for device in range(3):
            self.use(device)
            streams.append(self.stream())
            buffers.append((self.buffer(self.data(device, 300)), self.room(300)))
        return [ctypes.c_void_p(one) for one in made], streams, buffers

    def one_process(self) -> bool:
        comms, streams, buffers = self.all_here()
        for rank in range(3):
            self.check(self.all_reduce(*buffers[rank], comms[rank], streams[rank]))
        expected, right = sum(self.data(rank, 300) for rank in range(3)), True
        for rank in range(3):
            self.wait(streams[rank])
            right &= bool((buffers[rank][1].get() == expected).all())
        return right

    def two_here(self) -> bool:
        """Ranks 0 and 1 are in one process, rank 2 in another one."""
        mine = [0, 1] if self.rank == 0 else [2]
        if self.rank == 0:
            self.say("id-world", self.nccl.unique_id())
        unique = UniqueId.from_buffer_copy(self.hear("id-world"))
        made = [Comm() for _ in mine]

        def begin(comm: Comm, rank: int) -> int:
            self.use(rank)
            return int(self.lib.ncclCommInitRank(ctypes.byref(comm), 3, unique, rank))

        self.group(*[partial(begin, *one) for one in zip(made, mine, strict=True)])
        rooms, streams = [], []
        for rank in mine:
            self.use(rank)
            rooms.append((self.buffer(self.data(rank, 300)), self.room(300)))
            streams.append(self.stream())
        self.group(*[partial(self.all_reduce, *rooms[i], made[i], streams[i]) for i in range(len(mine))])
        for stream in streams:
            self.wait(stream)
        expected = sum(self.data(rank, 300) for rank in range(3))
        return all(np.array_equal(room.get(), expected) for _, room in rooms)

    def queues(self) -> bool:
        """Returns whether a stream makes progress while another stream waits for a waiting kernel."""
        comms, streams, buffers = self.all_here()
        self.use(0)
        behind, beside = self.stream(), self.stream()
        event = ctypes.c_void_p()
        self.check(self.all_reduce(*buffers[0], comms[0], streams[0]))
        self.cuda(self.mock.cuEventCreate(ctypes.byref(event), 0))
        self.cuda(self.mock.cuEventRecord(event, streams[0]))
        self.cuda(self.mock.cuStreamWaitEvent(behind, event, 0))
        words = [self.room(16), self.room(16)]
        for word, stream in zip(words, (behind, beside), strict=True):
            self.cuda(self.mock.cuMemsetD8Async(ctypes.c_void_p(word.at), 0, ctypes.c_size_t(64), stream))
        time.sleep(0.3)
        got_on = bool(self.mock.cuStreamQuery(beside) == 0)
        for rank in (1, 2):
            self.check(self.all_reduce(*buffers[rank], comms[rank], streams[rank]))
        self.wait(behind)
        self.wait(beside)
        return got_on

    def order_after_the_end(self) -> int:
        """Returns the driver's status after a copy that reads, on another stream, the data of an ended copy."""
        self.cuda(self.mock.cuInit(0))
        self.use(0)
        first, second, event = self.stream(), self.stream(), ctypes.c_void_p()
        at = [ctypes.c_ulonglong() for _ in range(3)]
        for one in at:
            self.cuda(self.mock.cuMemAlloc_v2(ctypes.byref(one), ctypes.c_size_t(64)))
        self.cuda(self.mock.cuEventCreate(ctypes.byref(event), 0))
        self.cuda(self.mock.cuMemcpyAsync(at[1], at[0], ctypes.c_size_t(64), first))
        self.cuda(self.mock.cuEventRecord(event, first))
        time.sleep(0.3)
        if self.given["how"] == "query":
            self.cuda(self.mock.cuEventQuery(event))
        if self.given["how"] == "event":
            self.cuda(self.mock.cuStreamWaitEvent(second, event, 0))
        self.cuda(self.mock.cuMemcpyAsync(at[2], at[1], ctypes.c_size_t(64), second))
        return int(self.mock.cuStreamSynchronize(second))

    def memory(self) -> int:
        """Returns the bytes that this rank allocates for FIFOs and transfers."""
        self.comm()
        return int(self.mock.mock_largest())

    def memory_of_all_kinds(self) -> list[int]:
        """Returns the rank's peak of GPU bytes, its bytes in FIFOs and transfers, and the bytes of ncclCommMemStats."""
        comm, figure = self.comm(), ctypes.c_uint64()
        self.check(self.lib.ncclCommMemStats(comm, 3, ctypes.byref(figure)))
        most = int(self.mock.mock_most_kilobytes(self.rank)) << 10
        return [most, int(self.mock.mock_largest()), figure.value]

    def pinned_memory(self) -> int:
        """Bytes of host memory that this rank has pinned for its pairs."""
        self.comm()
        return int(self.mock.mock_pinned())

    def regions(self) -> int:
        """How many regions of pinned memory this rank shares, once a call has gone well."""
        comm = self.comm()
        assert self.sums_are_right(comm, stream=self.stream())
        return int(self.mock.mock_calls(b"register_host"))

    # Refusals.

    def refused_calls(self) -> dict[str, Any]:
        """After each call that is refused the communicator does what it did before."""
        comm, stream = self.comm(), self.stream()
        buffer, room = self.buffer(self.data(self.rank, 100)), self.room(100)
        lib, size = self.lib, ctypes.c_size_t

        calls: dict[str, Callable[[], int]] = {
            "a send to itself without a receive": lambda: self.send(buffer, self.rank, comm, stream),
            "no type": lambda: int(lib.ncclAllReduce(buffer.at, room.at, size(100), 77, 0, comm, stream)),
            "no operation": lambda: int(lib.ncclAllReduce(buffer.at, room.at, size(100), FLOAT, 99, comm, stream)),
            "no root": lambda: int(lib.ncclBroadcast(buffer.at, room.at, size(100), FLOAT, 99, comm, stream)),
            "no buffer": lambda: int(lib.ncclAllReduce(None, room.at, size(100), FLOAT, 0, comm, stream)),
            "no peer": lambda: self.send(buffer, 99, comm, stream),
        }
        said: dict[str, Any] = {}
        for name, call in calls.items():
            code = call()
            self.meet(name.replace(" ", "-"))
            said[name] = [code != 0, self.error(comm) == 0 and self.sums_are_right(comm, stream=stream)]
        return said

    # Several communicators.

    def creation_beside_a_waiting_kernel(self) -> bool:
        """Ranks make a communicator while a kernel of another one waits for rank 1, which calls later."""
        first, stream = self.comm("first"), self.stream(0)  # the legacy stream would wait for it
        if self.rank != 1:
            self.waiting_kernel(first, stream)
        second = self.comm("second")
        right = self.sums_are_right(second, stream=self.stream())
        self.meet("made")
        if self.rank == 1:
            self.waiting_kernel(first, stream)
        self.wait(stream)
        return right

    def another_kernel_beside_a_waiting_one(self) -> bool:
        """A call of a type that was never called before, while a kernel of another communicator waits for rank 1."""
        first, second, stream, other = self.comm("first"), self.comm("second"), self.stream(), self.stream()
        if self.rank != 1:
            self.waiting_kernel(first, stream)
        ones, room = self.buffer(np.ones(60, dtype=np.int8)), self.buffer(np.zeros(60, dtype=np.int8))
        where = (ctypes.c_void_p(ones.at), ctypes.c_void_p(room.at), ctypes.c_size_t(60))
        self.check(self.lib.ncclAllReduce(*where, 0, 0, second, other))
        self.wait(other)
        self.meet("used")
        if self.rank == 1:
            self.waiting_kernel(first, stream)
        self.wait(stream)
        return bool((room.get() == self.nranks).all()) and self.error(first) == 0

    def end_beside_a_waiting_kernel(self) -> str:
        """One communicator ends while a kernel of another one waits for rank 1, which calls when all have come back."""
        first, stream, other = self.comm("first"), self.stream(), self.stream()
        before = self.held()
        second = self.comm("second")
        right = self.sums_are_right(second, stream=other)
        self.meet("used")
        if self.rank != 1:
            self.waiting_kernel(first, stream)
        self.check((self.lib.ncclCommAbort if self.given["end"] == "abort" else self.lib.ncclCommDestroy)(second))
        return self.after_the_end(first, stream, before, right)

    def abort_behind_a_waiting_kernel(self) -> str:
        """A call stands on the stream behind a kernel of another communicator when its own one is aborted."""
        first, stream = self.comm("first"), self.stream()
        before = self.held()
        second = self.comm("second")
        right = self.sums_are_right(second, stream=stream)
        self.meet("used")
        if self.rank != 1:
            self.waiting_kernel(first, stream)
            self.check(self.all_reduce(self.buffer(self.data(self.rank, 100)), self.room(100), second, stream))
        self.meet("called")
        self.check(self.lib.ncclCommAbort(second))
        return self.after_the_end(first, stream, before, right)

    def ends_in_time(self) -> float:
        """Seconds that the end of a communicator takes, at best of three, while a kernel of another one waits.

        With `behind`, a call of the communicator follows on the stream of that kernel.
        """
        first, stream = self.comm("first"), self.stream()
        others, times = [self.comm(f"other-{turn}") for turn in range(3)], []
        assert all(self.sums_are_right(other, stream=stream) for other in others)
        self.meet("used")
        if self.rank != 1:
            self.waiting_kernel(first, stream)
        for turn, other in enumerate(others):
            if self.given["behind"] and self.rank != 1:
                self.check(self.all_reduce(self.buffer(self.data(self.rank, 100)), self.room(100), other, stream))
            self.meet(f"called-{turn}")
            start = time.monotonic()
            self.check((self.lib.ncclCommAbort if self.given["end"] == "abort" else self.lib.ncclCommDestroy)(other))
            times.append(time.monotonic() - start)
        self.meet("ended")
        if self.rank == 1:
            self.waiting_kernel(first, stream)
        self.wait(stream)
        return min(times)

    def held(self) -> int:
        """Pieces of memory and handles that the library has."""
        return int(self.mock.mock_pieces()) - Buffer.made

    def after_the_end(self, first: Comm, stream: ctypes.c_void_p, before: int, right: bool) -> str:
        """Lets the kernel of `first` that waits end; `before` is what the library held without the other one."""
        self.meet("ended")
        if self.rank == 1:
            self.waiting_kernel(first, stream)
        self.wait(stream)
        expected = sum(self.data(rank, 100) for rank in range(self.nranks))
        right &= bool(np.array_equal(self.part[1].get(), expected))
        self.until(lambda: self.held() == before)
        return "right, and all is free" if right else "wrong"

    def end_in_a_capture(self) -> bool:
        """A communicator ends while calls of another one are captured, in the mode that forbids most."""
        first, second, stream, graph = self.comm("first"), self.comm("second"), self.stream(), ctypes.c_void_p()
        right = self.sums_are_right(second, stream=stream)
        send, recv = self.buffer(self.data(self.rank, 100)), self.room(100)
        self.cuda(self.mock.cuStreamBeginCapture_v2(stream, 0))
        self.check(self.all_reduce(send, recv, first, stream))
        self.check(self.lib.ncclCommDestroy(second))
        self.cuda(self.mock.cuStreamEndCapture(stream, ctypes.byref(graph)))
        ready = ctypes.c_void_p()
        self.cuda(self.mock.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_ulonglong(0)))
        self.cuda(self.mock.cuGraphLaunch(ready, stream))
        self.wait(stream)
        expected = sum(self.data(rank, 100) for rank in range(self.nranks))
        return right and bool(np.array_equal(recv.get(), expected))

    def forbidden_in_a_capture(self) -> list[int]:
        """The driver's statuses of an allocation while a stream is captured, and of the end of the capture."""
        stream, graph, at = self.stream(), ctypes.c_void_p(), ctypes.c_ulonglong()
        mode = ctypes.c_int(self.given["mode"])
        self.cuda(self.mock.cuStreamBeginCapture_v2(stream, 0))
        self.cuda(self.mock.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
        status = self.mock.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(64))
        return [int(status), int(self.mock.cuStreamEndCapture(stream, ctypes.byref(graph)))]

    def differing_addresses(self) -> list[Comm]:
        """Two communicators that are made side by side, begun in an order of each rank's own."""
        if self.rank == 0:
            for name in ("first", "second"):
                self.say(f"id-{name}", self.nccl.unique_id())
        made, names = [Comm(), Comm()], ["first", "second"]

        def begin(c: int) -> int:
            unique = UniqueId.from_buffer_copy(self.hear(f"id-{names[c]}"))
            return int(self.lib.ncclCommInitRank(ctypes.byref(made[c]), self.nranks, unique, self.rank))

        self.group(*[partial(begin, c) for c in ([0, 1] if self.rank % 2 else [1, 0])])
        self.comms += made
        return made

    def two_in_a_group(self) -> bool:
        """Calls of two communicators in one group, on one stream, in an order of each rank's own."""
        comms, stream, count, right = self.differing_addresses(), self.stream(), self.sized(500), True
        for turn in range(4):
            order = [0, 1] if (self.rank + turn) % 2 else [1, 0]
            buffers = [(self.buffer(self.data(self.rank, count, c)), self.room(count)) for c in (0, 1)]
            self.group(*[partial(self.all_reduce, *buffers[c], comms[c], stream) for c in order])
            self.wait(stream)
            for c in (0, 1):
                expected = sum(self.data(rank, count, c) for rank in range(self.nranks))
                right &= bool((buffers[c][1].get() == expected).all())
        return right

    def transfers_of_two_in_a_group(self) -> bool:
        """Ranks 0 and 1 exchange over two communicators in one group, on one stream, named in opposite orders."""
        comms, stream, right = self.differing_addresses(), self.stream(), True
        other, count = 1 - self.rank, self.sized(500)
        for turn in range(2 if self.rank < 2 else 0):
            order = [0, 1] if (self.rank + turn) % 2 else [1, 0]
            rooms = [self.room(count), self.room(count)]
            calls = []
            for c in order:
                calls.append(partial(self.send, self.buffer(self.data(self.rank, count, c)), other, comms[c], stream))
                calls.append(partial(self.recv, rooms[c], other, comms[c], stream))
            self.group(*calls)
            self.wait(stream)
            right &= all(self.got(rooms[c], other, count, c) for c in (0, 1))
        return right


def main() -> Any:
    library, scenario, rank, nranks, folder = sys.argv[1:6]
    given = json.loads(sys.argv[6]) if len(sys.argv) > 6 else {}
    one = Scenarios(Path(library), int(rank), int(nranks), Path(folder), given)
    try:
        said = getattr(one, scenario)()
    finally:
        one.say(f"end-{rank}")
    # A process that ends takes its communicators with it: what others still receive from it would be cut short.
    if "leave" not in given:
        one.meet("end")
    return said


def run() -> None:
    """This process is the rank that its arguments say."""
    try:
        answer = main()
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
    # Kernels that still wait must not keep the process, unless how it ends is what is asked.
    if '"leave"' not in sys.argv[-1]:
        os._exit(0)


if __name__ == "__main__":
    run()
