#!/usr/bin/env python3
"""Checks ranks in separate processes on one GPU: results, times, and a rank that does not come.

check.py starts the parts at the end of this file; they start a process per rank, which is this file run as a program.
Such a process reads a command per line from stdin and answers each with a line. Ranks of one process share a
cooperative launch; these ranks make ordinary launches. Without MPS the GPU runs one process at a time.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import results
from gpu import FLOAT, OPS, TYPES, CheckError, Cuda, Lender, Library, Progress, held_ranks, read_manifest

STILL_RUNS = 600  # cuStreamQuery: CUDA_ERROR_NOT_READY
STRETCH = float(os.environ.get("GPU_CHECK_STRETCH", "1"))  # --stretch of check.py
# Time limits in seconds: for an answer of a rank, and for the end of a kernel after an abort, a time-out or a death.
ANSWER = 30.0 * STRETCH
END = 5.0 * STRETCH
# Seconds that a kernel waits for a missing rank before the abort or the death, and COLLC_TIMEOUT.
SPIN, LIMIT = 0.3, 1.0
# By transport: the log line with COLLC_DEBUG=INFO that shows that ranks use it; the line of rank 0 if copy engines do
# calls; and the variables that select it.
BY_COPIES = "copy engines do all_gathers and broadcasts of 1 bytes and more"
WAYS = {
    "GPU memory": ("GPU memory joins it with rank", "", {}),
    "host slots": ("pinned host memory joins it with", "", {"NCCL_P2P_DISABLE": "1"}),
    "copy engines": ("GPU memory joins it with rank", f"{BY_COPIES}\n", {"COLLC_COPY_ENGINES": "1"}),
    "copy engines, host slots": (
        "pinned host memory joins it with",
        f"{BY_COPIES} through pinned host memory\n",
        {"COLLC_COPY_ENGINES": "1", "NCCL_P2P_DISABLE": "1"},
    ),
}
TIMED = (8, 1 << 20)
# Without MPS a GPU runs the kernels of one process at a time, so a wait for another process lasts until its turn.
TURNS = ", as the GPU lets processes take turns"
Rows = Iterator["tuple[str, str, bool]"]


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_byte * 128),)


class RankLibrary(Library):
    """A library with one rank of a communicator; the others are in other processes."""

    def __init__(self, path: Path, cuda: Cuda, unique: bytes, nranks: int, rank: int) -> None:
        self.path, self.cuda, self.nranks, self.first, self.unique = path, cuda, nranks, rank, unique
        self.lib = ctypes.CDLL(str(path))
        self.streams = [cuda.stream()]
        self.create()

    def create(self) -> None:
        self.lib.ncclGetLastError.restype = ctypes.c_char_p
        self.comms = (ctypes.c_void_p * 1)()
        unique = UniqueId.from_buffer_copy(self.unique)
        self.check(self.lib.ncclCommInitRank(self.comms, self.nranks, unique, self.first), "ncclCommInitRank")


class Worker:
    """The commands of a rank's process."""

    def __init__(self, path: str, rank: int, nranks: int) -> None:
        self.path, self.rank, self.nranks = Path(path), rank, nranks
        self.cuda = Cuda()
        self.library: RankLibrary | None = None
        self.places: list[tuple[int, int]] = []
        self.lends = False

    def lend(self) -> str:
        """Uses buffers of ncclMemAlloc from now on, which other ranks map before a call."""
        self.cuda, self.lends = Lender(self.path), True
        return ""

    def show(self, *buffers: tuple[int, int]) -> None:
        """Announces buffers (address and size) that calls will use."""
        library, window = self.made(), ctypes.c_void_p()
        for at, size in buffers if self.lends else ():
            given = (ctypes.c_void_p(library.comms[0]), ctypes.c_void_p(at), ctypes.c_size_t(size))
            library.check(library.lib.ncclCommWindowRegister(*given, ctypes.byref(window), 0), "ncclCommWindowRegister")

    def unique(self) -> str:
        made = UniqueId()
        if ctypes.CDLL(str(self.path)).ncclGetUniqueId(ctypes.byref(made)):
            raise CheckError("ncclGetUniqueId failed")
        return bytes(made).hex()

    def create(self, unique: str) -> str:
        self.library = RankLibrary(self.path, self.cuda, bytes.fromhex(unique), self.nranks, self.rank)
        return ""

    def unset(self, variable: str) -> str:
        """Unsets a variable for communicators that this process creates later."""
        os.environ.pop(variable, None)
        return ""

    def made(self) -> RankLibrary:
        if self.library is None:
            raise CheckError("there is no communicator")
        return self.library

    def one(self, collective: str, type_name: str, count: int) -> bool:
        """Makes one call and returns whether every byte is right."""
        case = results.Case(collective, type_name, "sum" if collective in results.REDUCING else "none", count)
        library, (number, carrier) = self.made(), TYPES[type_name]
        send, recv = results.lengths(collective, self.nranks, count)
        mine = results.encode(results.numbers_of(self.rank, self.nranks, send, case.op), type_name)
        ends = (self.cuda.allocate(mine.nbytes), self.cuda.allocate(recv * mine.itemsize))
        self.cuda.put(ends[0], mine)
        self.cuda.put(ends[1], np.full(recv * mine.itemsize, results.UNTOUCHED, "u1"))
        self.cuda.synchronize()
        self.show((ends[0], mine.nbytes), (ends[1], recv * mine.itemsize))
        if collective == "send and receive":
            library.pass_on([ends], count, number)
        else:
            library.call(collective, [ends], count, number, OPS["sum"])
        if self.lends:  # a user may overwrite the input right after the call on the stream
            size = ctypes.c_size_t(mine.nbytes)
            self.cuda("cuMemsetD8Async", ctypes.c_uint64(ends[0]), ctypes.c_ubyte(0x55), size, library.streams[0])
        self.wait(ANSWER)
        wanted = results.expected(collective, self.nranks, count, case.op)[self.rank]
        untouched = bytes([results.UNTOUCHED]) * (recv * mine.itemsize)
        held = untouched if wanted is None else results.encode(wanted, type_name).tobytes()
        right = self.cuda.get(ends[1], recv, carrier).tobytes() == held
        for at in ends:
            self.cuda.release(at)
        return right

    def call(self, size: int = 1 << 16) -> str:
        """Starts an all_reduce and does not wait for it."""
        if not self.places:
            self.places = [(self.cuda.allocate(max(TIMED)), self.cuda.allocate(max(TIMED)))]
        self.made().call("all_reduce", self.places, size // 4, FLOAT, OPS["sum"])
        return ""

    def time(self, size: int, rounds: int) -> float:
        """Returns the seconds per call of several calls in a row."""
        self.call(size)
        self.wait(ANSWER)
        start = time.perf_counter()
        for _ in range(rounds):
            self.call(size)
        self.wait(ANSWER)
        return (time.perf_counter() - start) / rounds

    def runs(self) -> bool:
        status = self.cuda.lib.cuStreamQuery(self.made().streams[0])
        if status not in (0, STILL_RUNS):
            raise CheckError(f"cuStreamQuery failed with CUDA error {status}")
        return bool(status == STILL_RUNS)

    def wait(self, seconds: float) -> float:
        """Waits until the work on the stream has ended; returns the seconds."""
        start = time.perf_counter()
        while self.runs():
            if time.perf_counter() - start > seconds:
                raise CheckError(f"the kernel has not ended in {seconds:g} s")
        return time.perf_counter() - start

    def abort(self) -> float:
        """Aborts; returns the seconds until the kernel has ended. The communicator is gone then, but the GPU works."""
        library = self.made()
        start = time.perf_counter()
        library.check(library.lib.ncclCommAbort(ctypes.c_void_p(library.comms[0])), "ncclCommAbort")
        self.wait(END)
        took = time.perf_counter() - start
        self.library = None
        return took

    def error(self, seconds: float) -> list[Any]:
        """Waits for an asynchronous error: [seconds until it, seconds until the end of the kernel, text]."""
        library, status = self.made(), ctypes.c_int()
        start = time.perf_counter()
        while not status.value or status.value == 7:  # ncclInProgress
            if time.perf_counter() - start > seconds:
                raise CheckError(f"no error in {seconds:g} s")
            handle = ctypes.c_void_p(library.comms[0])
            library.check(library.lib.ncclCommGetAsyncError(handle, ctypes.byref(status)), "asking for errors")
            time.sleep(0.001)
        told, words = time.perf_counter() - start, (library.lib.ncclGetLastError(None) or b"").decode()
        self.wait(END)
        ended = time.perf_counter() - start
        return [told, ended, words]

    def end(self) -> str:
        self.made().close()
        self.library = None
        return ""


class Rank:
    """The process of a rank, in the part that started it."""

    def __init__(self, path: Path, rank: int, nranks: int, settings: dict[str, str]) -> None:
        self.rank = rank
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(path), str(rank), str(nranks)],
            env={**os.environ, "COLLC_DEBUG": "INFO", **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )
        self.answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # lines of a driver may come in between
                self.answers.put(line)
        self.answers.put(None)

    def tell(self, command: str, *given: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([command, *given]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise CheckError(f"the process of rank {self.rank} is gone: {self.last_words()}") from error

    def answer(self, seconds: float = ANSWER) -> Any:
        try:
            line = self.answers.get(timeout=seconds)
        except queue.Empty:
            raise CheckError(f"rank {self.rank} does not answer in {seconds:g} s") from None
        if line is None:
            raise CheckError(f"the process of rank {self.rank} ended: {self.last_words()}")
        found = json.loads(line)
        if "failed" in found:
            raise CheckError(f"rank {self.rank}: {found['failed']}")
        return found["value"]

    def ask(self, command: str, *given: Any, seconds: float = ANSWER) -> Any:
        self.tell(command, *given)
        return self.answer(seconds)

    def words(self) -> str:
        self.said.seek(0)
        return self.said.read().decode(errors="replace")

    def last_words(self) -> str:
        return (self.words().strip().splitlines() or ["no words"])[-1][:200]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Team:
    """All ranks of one communicator; they are always killed at the end of the scope."""

    def __init__(self, path: Path, settings: dict[str, str] | None = None) -> None:
        nranks = min(n for n in held_ranks(read_manifest(path)) if n > 1)
        Progress.tell(f"making a communicator of {nranks} processes")
        self.ranks = [Rank(path, rank, nranks, settings or {}) for rank in range(nranks)]
        try:
            self.create()
        except BaseException:
            self.__exit__()
            raise

    def create(self) -> None:
        unique = self.ranks[0].ask("unique")
        self.all("create", unique)

    def all(self, command: str, *given: Any) -> list[Any]:
        """The answers of all ranks."""
        for rank in self.ranks:
            rank.tell(command, *given)
        return [rank.answer() for rank in self.ranks]

    def right(self) -> str:
        """Checks that the GPU still works: another communicator of the same processes gives right results."""
        self.create()
        return "" if all(self.all("one", "all_reduce", "float", 100_003)) else "; WRONG RESULTS after it"

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: Any) -> None:
        for rank in self.ranks:
            rank.kill()
            sys.stderr.write(rank.words())


def cases_of(team: Team, path: Path, tiny: bool, until: float) -> tuple[str, bool]:
    """Makes calls of every collective in some types; returns the text of the row and whether all were right."""
    cases = [
        (collective, type_name, count)
        for count in ((33,) if tiny else (33, 100_003, 1_000_003))
        for collective in (*results.held(read_manifest(path)["allocations"][0]["programs"]), *results.TRANSFERS)
        for type_name in ("float", "int8", "bfloat16")
    ]
    done, wrong = 0, []
    for case in cases:
        if time.monotonic() > until:
            break
        Progress.tell(" ".join(map(str, case)))
        done += 1
        if not all(team.all("one", *case)):
            wrong.append(" ".join(map(str, case)))
    text = f"{done - len(wrong)} of {done} right"
    text += f", {len(cases) - done} not reached in time" if done < len(cases) else ""
    return text + (f"; wrong: {', '.join(wrong[:4])}" if wrong else ""), not wrong and done > 0


def processes(path: Path, way: str, tiny: bool, until: float) -> Rows:
    """Checks results and times of ranks in separate processes."""
    words, copied, settings = WAYS[way]
    with Team(path, settings) as team:
        n = len(team.ranks)
        what = f"{n} processes, {way}"
        said = [rank.words() for rank in team.ranks]
        if not all(words in one for one in said):
            told = next((line for one in said for line in one.splitlines() if "joins it" in line), "nothing")
            yield what, f"not run: they are not joined so, but: {told.strip()[:160]}", True
            return
        if copied not in said[0]:
            told = next((line for line in said[0].splitlines() if "COPY_ENGINES" in line), "nothing")
            yield what, f"not run: kernels do all calls: {told.strip()[:160]}", True
            return
        yield what, *cases_of(team, path, tiny, until)
        times = []
        for size in () if copied else TIMED:
            Progress.tell(f"all_reduce of {size} bytes")
            times.append(f"{max(team.all('time', size, 2 if tiny else 20)) * 1e6:.0f}")
        if times:
            yield f"{what}, all_reduce", f"{', '.join(times)} us for {', '.join(map(str, TIMED))} bytes{TURNS}", True
        team.all("end")


def lending(path: Path, tiny: bool, until: float) -> Rows:
    """Checks results of ranks in separate processes that map each other's buffers."""
    with Team(path, {"COLLC_PROTO": "Simple", "COLLC_DIRECT_PROCESSES": "1"}) as team:
        what = f"{len(team.ranks)} processes that read each other's buffers"
        said = [rank.words() for rank in team.ranks]
        if not all("are read where they stand between" in one for one in said):
            yield what, "not run: GPU memory does not join them, or the library has no kernels for that", True
            return
        team.all("lend")
        text, right = cases_of(team, path, tiny, until)
        words = [line for rank in team.ranks for line in rank.words().splitlines()]
        refused = [line for line in words if "cannot map its buffer" in line or "cannot be mapped by other" in line]
        if refused:
            yield what, f"not run: {refused[0].strip()[:160]}", True
            return
        yield what, text, right
        team.all("end")


def caught(rank: Rank) -> None:
    """Starts a call on one rank and checks that its kernel waits for the ranks that do not come."""
    rank.ask("call")
    time.sleep(SPIN)
    if not rank.ask("runs"):
        raise CheckError("the kernel ended although a rank did not come")


def aborts(path: Path) -> Rows:
    """Checks ncclCommAbort while a kernel waits for a rank that does not come."""
    with Team(path) as team:
        caught(team.ranks[0])
        took = team.ranks[0].ask("abort")
        for other in team.ranks[1:]:
            other.ask("abort")
        wrong = team.right()
        team.all("end")
        text = f"ended {took * 1e3:.1f} ms after ncclCommAbort{wrong or '; the next communicator is right'}"
        yield "abort of a kernel that waits", text, not wrong


def time_outs(path: Path) -> Rows:
    """Checks COLLC_TIMEOUT while a kernel waits."""
    with Team(path, {"COLLC_TIMEOUT": str(LIMIT)}) as team:
        team.ranks[0].ask("call")
        told, ended, words = team.ranks[0].ask("error", LIMIT + END)
        named = "COLLC_TIMEOUT" in words and any(f"rank {rank.rank}" in words for rank in team.ranks[1:])
        team.all("abort")
        team.all("unset", "COLLC_TIMEOUT")  # the ranks may come to the next call further apart
        wrong = team.right()
        good = named and not wrong
        text = f"told after {told:.2f} s of {LIMIT:g}, ended {(ended - told) * 1e3:.1f} ms later{wrong}: {words[:120]}"
        yield "time-out of a kernel that waits", text if named else f"NOT NAMED: {text}", good


def deaths(path: Path) -> Rows:
    """Checks the death of a rank, between calls and while another rank's kernel waits for it."""
    for when in ("while a kernel waits", "before a call"):
        Progress.tell(when)
        with Team(path) as team:
            first, last = team.ranks[0], team.ranks[-1]
            if when == "before a call":
                last.kill()
                # The other rank may know of the death already and refuse the call; then nothing runs.
                first.tell("call")
                try:
                    first.answer()
                except CheckError as error:
                    named = f"rank {last.rank}" in str(error)
                    yield f"a rank killed {when}", f"refused: {str(error)[:120]}", named
                    continue
            else:
                caught(first)
                last.kill()
            told, ended, words = first.ask("error", END)
            named = f"rank {last.rank}" in words
            text = (
                f"told after {told * 1e3:.0f} ms, the kernel ended {(ended - told) * 1e3:.1f} ms later: {words[:120]}"
            )
            yield f"a rank killed {when}", text if named else f"NOT NAMED: {text}", named


def main() -> int:
    """Runs a rank's process: answers commands until stdin ends."""
    path, rank, nranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    worker: Worker | None = None
    for line in sys.stdin:
        command, *given = json.loads(line)
        try:
            worker = worker or Worker(path, rank, nranks)
            found = {"value": getattr(worker, command)(*given)}
        except CheckError as error:
            found = {"failed": str(error)}
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
