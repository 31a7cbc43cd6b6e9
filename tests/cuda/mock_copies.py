"""Copy engines for the ranks of one process, on the mock. test_copy_engines.py runs this file as a process.

    mock_copies.py LIBRARY SCENARIO [JSON]

SCENARIO is a method below, of three ranks (`nranks`) with a GPU and a stream each; what it returns is printed as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mock_program import Memory, gpu_of, synchronize

from collc.bench.nccl import Nccl
from collc.errors import RunError

FLOAT, COUNT, ROOT = 7, 300, 1
Call = tuple[str, list[Memory], list[Memory]]  # with inputs and outputs by rank


class Copies:
    def __init__(self, path: Path, given: dict[str, Any]) -> None:
        self.nccl, self.mock, self.given = Nccl(path), ctypes.CDLL("libcuda.so.1"), given
        self.n = given.get("nranks", 3)
        self.lib = self.nccl.lib
        self.comms = self.made()
        self.streams = self.new_streams()

    def made(self) -> list[ctypes.c_void_p]:
        comms = (ctypes.c_void_p * self.n)()
        self.nccl.check(
            self.lib.ncclCommInitAll(comms, self.n, (ctypes.c_int * self.n)(*range(self.n))), "ncclCommInitAll"
        )
        return [ctypes.c_void_p(comm) for comm in comms]

    def new_streams(self) -> list[ctypes.c_void_p]:
        made = [ctypes.c_void_p() for _ in self.comms]
        for stream, comm in zip(made, self.comms, strict=True):
            with gpu_of(self.nccl, comm):
                self.cuda(self.mock.cuStreamCreate(ctypes.byref(stream), 1))
        return made

    def cuda(self, status: int) -> None:
        assert status == 0, f"the driver says {status}"

    def count(self, name: str) -> int:
        return int(self.mock.mock_calls(name.encode()))

    def kernels(self) -> int:
        return self.count("launch") + self.count("launch_cooperative")

    def data(self, rank: int, tag: int, count: int = COUNT) -> np.ndarray:
        return ((np.arange(count) * 7919 + rank * 104729 + tag * 1299709) % 251).astype("f4")

    def memory(self, content: Callable[[int], np.ndarray]) -> list[Memory]:
        """A buffer on each GPU."""
        found = []
        for rank, comm in enumerate(self.comms):
            with gpu_of(self.nccl, comm):
                found.append(Memory(self.nccl, content(rank)))
        return found

    def room(self, count: int) -> list[Memory]:
        return self.memory(lambda _: np.full(count, -1, "f4"))

    def call(self, what: str, tag: int) -> Call:
        return (
            what,
            self.memory(lambda rank: self.data(rank, tag)),
            self.room(self.n * COUNT if what == "all_gather" else COUNT),
        )

    def group(self, call: Call, streams: list[ctypes.c_void_p], ranks: tuple[int, ...] = ()) -> None:
        """Calls in one group of all ranks, or in one group per rank, as if other processes made the other calls."""
        ranks = ranks or tuple(range(self.n))
        if self.given.get("apart") and len(ranks) > 1:
            for rank in ranks:
                self.group(call, streams, (rank,))
            return
        self.nccl.check(self.lib.ncclGroupStart(), "ncclGroupStart")
        for rank in ranks:
            self.begin(call, rank, streams[rank])
        self.nccl.check(self.lib.ncclGroupEnd(), "ncclGroupEnd")

    def begin(self, call: Call, rank: int, stream: ctypes.c_void_p) -> None:
        what, given, comm = call[0], self.given_to(call, rank), self.comms[rank]
        if what == "all_gather":
            status = self.lib.ncclAllGather(*given, comm, stream)
        elif what == "broadcast":
            status = self.lib.ncclBroadcast(*given, ROOT, comm, stream)
        else:
            status = self.lib.ncclAllReduce(*given, 0, comm, stream)
        self.nccl.check(status, what)

    def given_to(self, call: Call, rank: int) -> tuple[Any, ...]:
        _, inputs, outputs = call
        sizes = ctypes.c_size_t(inputs[rank].like.size), FLOAT
        return (ctypes.c_void_p(inputs[rank].at), ctypes.c_void_p(outputs[rank].at), *sizes)

    def right(self, call: Call, tag: int, found: list[Memory] | None = None) -> bool:
        what, _, outputs = call
        each = [self.data(rank, tag) for rank in range(self.n)]
        wanted = {"all_gather": np.concatenate(each), "broadcast": each[ROOT], "all_reduce": sum(each)}[what]
        return all(one.bytes() == np.asarray(wanted).tobytes() for one in found or outputs)

    def copy(self, to: list[Memory], source: list[Memory], streams: list[ctypes.c_void_p]) -> None:
        for rank, comm in enumerate(self.comms):
            with gpu_of(self.nccl, comm):
                at, origin = (ctypes.c_ulonglong(one[rank].at) for one in (to, source))
                size = ctypes.c_size_t(to[rank].like.nbytes)
                self.cuda(self.mock.cuMemcpyAsync(at, origin, size, streams[rank]))

    def end(self) -> None:
        for comm in self.comms:
            self.nccl.check(self.lib.ncclCommDestroy(comm), "ncclCommDestroy")

    def between_copies(self) -> str:
        """On each stream what was in the output comes before the call, and who takes and overwrites it behind."""
        what = self.given["what"]
        call = self.call(what, 0)
        old, taken = (self.room(call[2][0].like.size) for _ in range(2))
        self.group(call, self.streams)  # the first one of each stream
        assert synchronize(self.mock) == 0
        before, kernels = self.count("wait"), self.kernels()
        self.mock.mock_drop_wait(self.given.get("drop", -1))
        self.copy(call[2], old, self.streams)
        self.group(call, self.streams)
        self.mock.mock_drop_wait(-1)
        self.copy(taken, call[2], self.streams)
        self.copy(call[2], old, self.streams)
        assert self.kernels() == kernels
        assert self.count("wait") - before == self.given["waits"], self.count("wait") - before
        if synchronize(self.mock):
            return "race"
        return "right" if self.right(call, 0, taken) else "wrong"

    def between_streams(self) -> str:
        """A call whose copies are on streams of the rank's own, behind one on another stream: its caller fills inputs
        and outputs before it and overwrites both behind it."""
        what, others = self.given["what"], self.new_streams()
        first, call = self.call(what, 1), self.call(what, 0)
        source = call[1]
        old, taken, early = (self.room(call[2][0].like.size) for _ in range(3))
        target: Call = (what, self.room(COUNT), call[2])
        self.group((what, first[1], first[2]), others)
        before, kernels = self.count("wait"), self.kernels()
        self.copy(target[2], old, self.streams)
        self.copy(target[1], source, self.streams)
        self.mock.mock_drop_wait(self.given.get("drop", -1))
        self.group(target, self.streams)
        self.mock.mock_drop_wait(-1)
        self.copy(taken, target[2], self.streams)
        self.copy(target[2], old, self.streams)
        self.copy(target[1], first[1], self.streams)
        self.copy(early, first[2], others)
        assert self.kernels() == kernels
        assert self.count("wait") - before == self.given["waits"], self.count("wait") - before
        if synchronize(self.mock):
            return "race"
        return "right" if self.right(call, 0, taken) and self.right(first, 1, early) else "wrong"

    def between_staged_copies(self) -> str:
        """A call without one of its operations on memory, between all_gathers; all write to the same output."""
        whats = ("all_gather", self.given["what"], "all_gather")
        calls, output = [self.call(what, tag) for tag, what in enumerate(whats)], self.room(self.n * COUNT)
        taken = [self.room(call[2][0].like.size) for call in calls]
        for number, (what, inputs, _) in enumerate(calls):
            before = self.count("wait_value") + self.count("write_value")
            self.mock.mock_drop_operation(self.given["drop"] if number == 1 else -1)
            self.group((what, inputs, output), self.streams)
            self.mock.mock_drop_operation(-1)
            made = self.count("wait_value") + self.count("write_value") - before
            assert number != 1 or made == self.given["operations"], made
            self.copy(taken[number], output, self.streams)
        assert self.kernels() == 0
        if synchronize(self.mock):
            return "race"
        right = all(self.right(call, tag, taken[tag]) for tag, call in enumerate(calls))
        return "right" if right else "wrong"

    def with_kernels(self) -> list[bool]:
        """Calls by kernels and by copies take turns on two sets of streams, each on what the one before has left."""
        sets, right = [self.streams, self.new_streams()], []
        for turn in range(4):
            summed = self.call("all_reduce", turn)
            gathered: Call = ("all_gather", summed[2], self.room(self.n * COUNT))
            sent: Call = ("broadcast", gathered[2], self.room(self.n * COUNT))
            again: Call = ("all_reduce", sent[2], self.room(self.n * COUNT))
            for number, call in enumerate((summed, gathered, sent, again)):
                self.group(call, sets[(number + turn) % 2])
            assert synchronize(self.mock) == 0
            total = np.asarray(sum(self.data(rank, turn) for rank in range(self.n)))
            wanted = (self.n * np.tile(total, self.n)).astype("f4").tobytes()
            right.append(all(one.bytes() == wanted for one in again[2]))
        assert self.kernels() == 2 * 4 * self.n
        self.end()
        return right

    def in_graphs(self) -> list[int | bool]:
        """Kernels do what is captured; how many ran, and whether results are right, with calls by copies between."""
        call, plain, right = self.call("all_gather", 0), self.call("all_gather", 1), True
        graphs = []
        for stream in self.streams:
            self.cuda(self.mock.cuStreamBeginCapture_v2(stream, 0))
        self.group(call, self.streams)
        for stream in self.streams:
            graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
            self.cuda(self.mock.cuStreamEndCapture(stream, ctypes.byref(graph)))
            self.cuda(self.mock.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_ulonglong(0)))
            graphs.append(ready)
        kernels, others = self.kernels(), self.new_streams()
        for _ in range(3):
            for graph, stream in zip(graphs, self.streams, strict=True):
                self.cuda(self.mock.cuGraphLaunch(graph, stream))
            self.group(plain, others)
            assert synchronize(self.mock) == 0
            right &= self.right(call, 0) and self.right(plain, 1)
        assert self.kernels() == kernels
        return [kernels, right]

    def apart(self) -> list[int | bool]:
        """Ranks whose calls are in two groups: how many kernels ran, and whether they were right."""
        call = self.call("all_gather", 0)
        self.group(call, self.streams, (0, 2))
        self.group(call, self.streams, (1,))
        assert synchronize(self.mock) == 0
        return [self.kernels(), self.right(call, 0)]

    def behind_a_kernel(self) -> dict[str, Any]:
        """A call behind a kernel of rank 0 that waits for data that never come, until a time limit or an abort."""
        spare, call = self.room(8), self.call("all_gather", 0)
        status = self.lib.ncclRecv(
            ctypes.c_void_p(spare[0].at), ctypes.c_size_t(8), FLOAT, 1, self.comms[0], self.streams[0]
        )
        self.nccl.check(status, "ncclRecv")
        self.group(call, self.streams)
        time.sleep(0.3)
        stands = [self.mock.cuStreamQuery(stream) for stream in self.streams]
        error, start = ctypes.c_int(), time.monotonic()
        if self.given["abort"]:
            for comm in self.comms:
                self.nccl.check(self.lib.ncclCommAbort(comm), "ncclCommAbort")
        while not self.given["abort"] and error.value == 0 and time.monotonic() - start < 30:
            time.sleep(0.01)
            self.lib.ncclCommGetAsyncError(self.comms[1], ctypes.byref(error))
        text = ctypes.c_char_p(self.lib.ncclGetLastError(None)).value or b""
        ended = synchronize(self.mock)
        took = time.monotonic() - start
        self.comms = self.made()
        fresh = self.call("all_gather", 5)
        self.group(fresh, self.streams)
        again = synchronize(self.mock) == 0 and self.right(fresh, 5)
        return {
            "stands": stands,
            "error": error.value,
            "text": text.decode(),
            "ended": ended,
            "soon": took < 10,
            "again": again,
        }

    def failing_steps(self) -> list[list[str]]:
        """Lets each of the first `most` driver calls of a call by copies fail once. Returns the names of the driver
        calls and the outcomes of the call."""
        self.mock.mock_failed.restype = ctypes.c_char_p
        said: list[list[str]] = []
        while True:
            call = self.call(self.given["what"], len(said))
            self.mock.mock_fail_after(len(said))
            error = ""
            try:
                self.group(call, self.streams)
            except RunError as failed:
                error = str(failed)
            name = bytes(self.mock.mock_failed()).decode()
            self.mock.mock_fail_after(-1)
            assert synchronize(self.mock) == 0
            if not name or len(said) == self.given.get("most"):
                return said
            said.append([name, error or ("right" if self.right(call, len(said)) else "wrong")])
            if error:
                self.nccl.check(self.lib.ncclGroupStart(), "ncclGroupStart")
                assert self.lib.ncclAllGather(*self.given_to(call, 0), self.comms[0], self.streams[0]) in (0, 1)
                assert self.lib.ncclGroupEnd() != 0  # it is broken
                for comm in self.comms:
                    self.nccl.check(self.lib.ncclCommAbort(comm), "ncclCommAbort")
                self.comms = self.made()


def dropped_waits(path: Path, given: dict[str, Any]) -> list[str]:
    return dropped(path, given, (*range(given["waits"]), -1), Copies.between_copies)


def dropped_stream_waits(path: Path, given: dict[str, Any]) -> list[str]:
    return dropped(path, given, (*range(given["waits"]), -1), Copies.between_streams)


def dropped_operations(path: Path, given: dict[str, Any]) -> list[str]:
    return dropped(path, given, given["drops"], Copies.between_staged_copies)


def dropped(path: Path, given: dict[str, Any], drops: Sequence[int], scenario: Callable[[Copies], str]) -> list[str]:
    """Returns the result of a call without each of these in turn, each in a new process; -1: with all of them."""
    found = []
    for drop in drops:
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                said = scenario(Copies(path, {**given, "drop": drop}))
            except Exception as error:
                said = repr(error)
            os.write(writer, said.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            found.append(pipe.read())
        os.wait()
    return found


if __name__ == "__main__":
    library, scenario, asked = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    if scenario.startswith("dropped_"):
        print(json.dumps(globals()[scenario](library, asked)))
    else:
        print(json.dumps(getattr(Copies(library, asked), scenario)()))
