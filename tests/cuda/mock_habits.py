"""Uses of communicators other than collectives, by one rank of a job (mock_scenarios.py).

Made without blocking, by several threads, in groups; ended in any order, by watchdogs, amid everything.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mock_job import FLOAT, PATIENCE, Buffer, Comm
from mock_transfers import Transfers

from collc.bench.nccl import UniqueId
from collc.errors import CollcError

IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 7, 4, 5, 6
NO_COLOR = -1
SHRINK_ABORT = 1
UNDEFINED = -(1 << 31)


class Config(ctypes.Structure):
    """ncclConfig_t of 2.27, as PyTorch fills it in."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        *((name, ctypes.c_int) for name in ("blocking", "cgaClusterSize", "minCTAs", "maxCTAs")),
        ("netName", ctypes.c_char_p),
        *((name, ctypes.c_int) for name in ("splitShare", "trafficClass")),
        ("commName", ctypes.c_char_p),
        *((name, ctypes.c_int) for name in ("collnetEnable", "CTAPolicy", "shrinkShare", "nvlsCTAs")),
    ]


def config(blocking: int = UNDEFINED, name: str | None = None) -> Config:
    made = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 22700, blocking, *[UNDEFINED] * 3, None, *[UNDEFINED] * 2)
    made.commName = name.encode() if name is not None else None
    made.collnetEnable = made.CTAPolicy = made.shrinkShare = made.nvlsCTAs = UNDEFINED
    return made


# Methods that answer True if all is right; every rank of a job calls them in this order.
HABITS = (
    "made_without_blocking",
    "made_in_a_group_without_blocking",
    "split_without_blocking",
    "destroyed_amid_a_split",
    "several_splits_in_a_group",
    "several_splits_at_once",
    "made_by_threads",
    "ended_in_other_orders",
    "ended_in_a_group",
    "ended_by_a_thread_without_a_gpu",
    "called_by_two_threads",
    "finalized",
    "finalized_without_blocking",
    "aborted_amid_a_creation",
    "aborted_amid_a_split",
    "aborted_amid_calls",
    "asked_all_the_time",
    "nothing_among_something",
    "in_place_by_offsets",
    "called_from_another_device",
    "a_mistake_in_a_group",
    "alone",
)


class Habits(Transfers):
    def habits(self) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for name in self.given.get("names", HABITS):
            self.prefix = f"{name}-"
            try:
                said[name] = getattr(self, name)()
            except (RuntimeError, CollcError) as error:
                said[name] = str(error)
            for comm in list(self.comms):
                self.destroy(comm)
            self.meet("over")
        self.prefix = ""
        return said

    # Making.

    def unique(self, name: str, root: int = 0) -> UniqueId:
        if self.rank == root:
            self.say(f"id-{name}", self.nccl.unique_id())
        return UniqueId.from_buffer_copy(self.hear(f"id-{name}"))

    def begin(self, made: Comm, unique: UniqueId, settings: Config | None) -> int:
        where = ctypes.byref(settings) if settings is not None else None
        return int(self.lib.ncclCommInitRankConfig(ctypes.byref(made), self.nranks, unique, self.rank, where))

    def polled(self, comm: Comm) -> int:
        """Waits for a communicator that is created or ended without blocking, and returns its status."""
        self.until(lambda: self.error(comm) != IN_PROGRESS)
        return self.error(comm)

    def works(self, comm: Comm, count: int = 200, ranks: list[int] | None = None) -> bool:
        return self.sums_are_right(comm, count, self.stream(), ranks)

    def made_without_blocking(self) -> bool:
        """Nobody waits for ranks that come late; calls before it is made are refused and change nothing."""
        made, unique = Comm(), self.unique("world")
        if self.rank == 2:
            self.hear("asked")
        start = time.monotonic()
        right = self.begin(made, unique, config(0)) == IN_PROGRESS and time.monotonic() - start < 5
        self.comms.append(made)
        if self.rank == 0:
            room = self.room(10)
            right &= self.error(made) == IN_PROGRESS
            right &= self.all_reduce(room, room, made) == INVALID_USAGE
            right &= self.error(made) == IN_PROGRESS
            self.say("asked")
        return right and self.polled(made) == 0 and self.works(made)

    def made_in_a_group_without_blocking(self) -> bool:
        made, ids = [Comm(), Comm()], [self.unique("first"), self.unique("second", 1)]
        settings = config(0)
        self.check(self.lib.ncclGroupStart())
        for comm, unique in zip(made, ids, strict=True):
            code = self.begin(comm, unique, settings)
            assert code in (0, IN_PROGRESS), code
        right = self.lib.ncclGroupEnd() == IN_PROGRESS
        self.comms += made
        right &= [self.polled(comm) for comm in made] == [0, 0]
        # Calls on both in a group: the answer of a group without blocking is success or ncclInProgress.
        pairs = [(self.buffer(self.data(self.rank, 90, tag)), self.room(90)) for tag in (0, 1)]
        stream = self.stream()
        self.check(self.lib.ncclGroupStart())
        for comm, pair in zip(made, pairs, strict=True):
            self.check(self.all_reduce(*pair, comm, stream))
        right &= self.lib.ncclGroupEnd() in (0, IN_PROGRESS)
        right &= [self.polled(comm) for comm in made] == [0, 0]
        self.wait(stream)
        return right and all(
            np.array_equal(pair[1].get(), sum(self.data(rank, 90, tag) for rank in range(self.nranks)))
            for tag, pair in enumerate(pairs)
        )

    def split(self, comm: Comm, color: int, key: int, settings: Config | None = None) -> tuple[int, Comm]:
        part, where = Comm(1), ctypes.byref(settings) if settings is not None else None
        return int(self.lib.ncclCommSplit(comm, color, key, ctypes.byref(part), where)), part

    def split_without_blocking(self) -> bool:
        """One rank is in no part: its handle is NULL. The parent inherits its blocking to its parts."""
        made = Comm()
        code = self.begin(made, self.unique("world"), config(0))
        self.comms.append(made)
        right = code == IN_PROGRESS and self.polled(made) == 0
        code, part = self.split(made, NO_COLOR if self.rank == 1 else 0, -self.rank)
        if self.rank == 1:
            return right and code == 0 and part.value is None and self.works(made)
        self.comms.append(part)
        right &= code == IN_PROGRESS and self.polled(part) == 0
        return right and self.works(part, 70, [0, 2]) and self.works(made)

    def destroyed_amid_a_split(self) -> bool:
        """A communicator is destroyed while its split is still being created, and only the split is used later."""
        made = Comm()
        self.begin(made, self.unique("world"), config(0))
        right = self.polled(made) == 0
        if self.rank == 2:
            time.sleep(0.1)
        code, part = self.split(made, 0, self.rank)
        self.check(self.lib.ncclCommDestroy(made))
        self.comms.append(part)
        return right and code == IN_PROGRESS and self.polled(part) == 0 and self.works(part)

    def several_splits_in_a_group(self) -> bool:
        """Parts of one communicator by two colorings in one group, as for tensors and for data."""
        comm, parts = self.comm(), [Comm(), Comm(), Comm()]
        colors = [(0, 0, 1), (0, 1, 0), (NO_COLOR, 0, 0)]
        self.check(self.lib.ncclGroupStart())
        for part, coloring in zip(parts, colors, strict=True):
            self.check(self.lib.ncclCommSplit(comm, coloring[self.rank], self.rank, ctypes.byref(part), None))
        self.check(self.lib.ncclGroupEnd())
        return self.parts_are_right(parts, colors)

    def parts_are_right(self, parts: list[Comm], colors: Sequence[tuple[int, ...]]) -> bool:
        right = True
        for part, coloring in zip(parts, colors, strict=True):
            mine = coloring[self.rank]
            right &= (part.value is None) == (mine == NO_COLOR)
            if part.value is not None:
                self.comms.append(part)
                right &= self.works(part, 50, [rank for rank in range(self.nranks) if coloring[rank] == mine])
        return right

    def several_splits_at_once(self) -> bool:
        """Of one communicator, without blocking, the next one begun before the one before is there."""
        made = Comm()
        self.begin(made, self.unique("world"), config(0))
        self.comms.append(made)
        colors = [(0, 0, 1), (0, 1, 0), (0, NO_COLOR, 0), (1, 0, 0), (2, 1, NO_COLOR), (0, 0, 0)]
        right = self.polled(made) == 0
        parts = []
        for turn, coloring in enumerate(colors):
            time.sleep((self.rank + turn) % 3 * 0.002)
            code, part = self.split(made, coloring[self.rank], self.rank)
            right &= code == (0 if coloring[self.rank] == NO_COLOR else IN_PROGRESS)
            parts.append(part)
        right &= all(self.polled(part) == 0 for part in parts if part.value is not None)
        return right and self.parts_are_right(parts, colors)

    def thread(self, body: Callable[[], None]) -> threading.Thread:
        """A thread that runs, with this rank's GPU current."""
        device = ctypes.c_void_p()
        self.cuda(self.mock.cuCtxGetCurrent(ctypes.byref(device)))

        def run() -> None:
            self.mock.cuCtxSetCurrent(device)
            body()

        made = threading.Thread(target=run)
        made.start()
        return made

    def made_by_threads(self) -> bool:
        """Four communicators, each created by a thread. Every rank starts them in a different order."""
        ids = [self.unique(str(number), number % self.nranks) for number in range(4)]
        made = [Comm() for _ in ids]

        codes: list[int] = []

        def make(number: int) -> None:
            codes.append(self.begin(made[number], ids[number], None))

        threads = [self.thread(partial(make, (number + self.rank) % 4)) for number in range(4)]
        for thread in threads:
            thread.join()
        self.comms += made
        return codes == [0] * 4 and all(self.works(comm) for comm in made)

    def ranks_as_threads(self) -> list[str]:
        """Each rank is a thread of this process that makes its communicator and calls by itself. Returns the errors."""
        wrong, turns = list[str](), self.given["turns"]

        def rank_of(one: Habits, rank: int, comm: Comm, stream: ctypes.c_void_p) -> None:
            for turn in range(turns):
                count = 1 + turn * 97 % 500
                if not one.sums_are_right(comm, count, stream):
                    wrong.append(f"rank {rank}, sum {turn}")
                room, after, before = one.room(count), (rank + 1) % 3, (rank - 1) % 3
                sent = one.buffer(one.data(rank, count, turn))
                one.group(partial(one.send, sent, after, comm, stream), partial(one.recv, room, before, comm, stream))
                one.wait(stream)
                if not one.got(room, before, count, turn):
                    wrong.append(f"rank {rank}, transfer {turn}")

        failed = self.as_threads(3, rank_of)
        return wrong + failed

    def named(self) -> bool:
        """Names stay, whatever becomes of the caller's text; parts inherit them, or have others."""
        text = ctypes.create_string_buffer(b"all of them")
        settings, comm, parts = config(1), Comm(), [Comm(), Comm()]
        settings.commName = ctypes.cast(text, ctypes.c_char_p)
        self.check(self.begin(comm, self.unique("world"), settings))
        text.value = b"gone"
        for part, own in zip(parts, (None, ctypes.byref(config(1, "a part"))), strict=True):
            self.check(self.lib.ncclCommSplit(comm, 0, self.rank, ctypes.byref(part), own))
        self.comms += [comm, *parts]
        right = all(self.works(one) for one in self.comms)
        for one in list(self.comms):
            self.destroy(one)
        return right

    # Ending.

    def ended_in_other_orders(self) -> bool:
        """Every rank ends its communicators in a different order, and no rank waits for another."""
        before = self.held()
        made = [self.comm(str(number)) for number in range(4)]
        right = all(self.works(comm) for comm in made)
        self.meet("used")
        for number in range(4):
            start = time.monotonic()
            self.destroy(made[(number + self.rank) % 4])
            right &= time.monotonic() - start < 5
        self.until(lambda: self.held() == before)
        return right

    def held(self) -> int:
        return int(self.mock.mock_pieces()) - Buffer.made

    def ended_in_a_group(self) -> bool:
        """Aborts all communicators in one group while their kernels wait, as PyTorch does."""
        made, streams = [self.comm(str(number)) for number in range(3)], [self.stream() for _ in range(3)]
        right = all(self.works(comm) for comm in made)
        self.meet("used")
        if self.rank != 1:
            for comm, stream in zip(made[:2], streams, strict=False):
                self.check(self.all_reduce(self.buffer(self.data(self.rank, 40)), self.room(40), comm, stream))
        self.meet("called")
        start = time.monotonic()
        self.check(self.lib.ncclGroupStart())
        for comm in made[:2]:
            self.check(self.lib.ncclCommAbort(comm))
        self.check(self.lib.ncclCommDestroy(made[2]))
        self.check(self.lib.ncclGroupEnd())
        self.comms = []
        right &= time.monotonic() - start < 10
        for stream in streams:
            self.wait(stream)
        return right and self.works(self.comm("next"))

    def ended_by_a_thread_without_a_gpu(self) -> bool:
        """As a garbage collector does, behind a call that nobody has waited for; its stream is gone too."""
        comm, stream, codes = self.comm(), self.stream(), list[int]()
        mine, room = self.buffer(self.data(self.rank, 900)), self.room(900)
        self.check(self.all_reduce(mine, room, comm, stream))
        self.cuda(self.mock.cuStreamDestroy_v2(stream))
        self.comms = []
        thread = threading.Thread(target=lambda: codes.append(self.lib.ncclCommDestroy(comm)))
        thread.start()
        thread.join()
        self.cuda(self.mock.cuCtxSynchronize())
        return codes == [0] and bool(
            np.array_equal(room.get(), sum(self.data(rank, 900) for rank in range(self.nranks)))
        )

    def called_by_two_threads(self) -> bool:
        """Rank 0 splits in two threads: one of them is refused, and so are calls until the other one has ended."""
        comm, stream, lib = self.comm(), self.stream(), self.lib
        room, buffer = self.room(300), self.buffer(self.data(self.rank, 300))
        call, part, right = partial(self.all_reduce, buffer, room, comm, stream), Comm(), True
        if self.rank != 0:
            self.hear("refused")
            self.check(lib.ncclCommSplit(comm, 0, self.rank, ctypes.byref(part), None))
        else:
            ended: queue.Queue[tuple[int, Comm]] = queue.Queue()

            def split() -> None:
                made = Comm()
                ended.put((lib.ncclCommSplit(comm, 0, 0, ctypes.byref(made), None), made))

            for _ in range(2):
                threading.Thread(target=split, daemon=True).start()
            right &= ended.get(timeout=PATIENCE)[0] == INVALID_USAGE
            right &= call() == INVALID_USAGE and "another thread is in a call" in self.text()
            self.check(lib.ncclGroupStart())
            self.check(call())
            right &= lib.ncclGroupEnd() == INVALID_USAGE and lib.ncclCommFinalize(comm) == INVALID_USAGE
            right &= self.error(comm) == 0
            self.say("refused")
            code, part = ended.get(timeout=PATIENCE)
            right &= code == 0
        right &= self.sums_are_right(part, stream=stream) and self.sums_are_right(comm, stream=stream)
        self.check(lib.ncclCommDestroy(part))
        self.destroy(comm)
        return right

    def finalized(self) -> bool:
        """ncclCommFinalize returns when this rank's calls have ended; then nothing is left but the end."""
        right, lib = True, self.lib
        for name in ("alone", "in a group"):
            comm, stream = self.comm(name), self.stream()
            room, buffer = self.room(3000), self.buffer(self.data(self.rank, 3000))
            call, end = partial(self.all_reduce, buffer, room, comm, stream), partial(lib.ncclCommFinalize, comm)
            if name == "alone":
                self.check(call())
                self.check(end())
            else:
                self.group(call, end)
            right &= bool(self.mock.cuStreamQuery(stream) == 0)
            self.wait(stream)
            right &= bool(np.array_equal(room.get(), sum(self.data(rank, 3000) for rank in range(self.nranks))))
            right &= call() == INVALID_USAGE and end() == INVALID_ARGUMENT and self.error(comm) == 0
            self.destroy(comm)
        return right

    def finalized_without_blocking(self) -> bool:
        """It is in progress while a call waits for rank 1, which comes when the others have asked."""
        comm, stream = Comm(), self.stream()
        self.begin(comm, self.unique("world"), config(0))
        self.comms.append(comm)
        right = self.polled(comm) == 0
        room, buffer = self.room(300), self.buffer(self.data(self.rank, 300))
        if self.rank == 1:
            for rank in (0, 2):
                self.hear(f"asked-{rank}")
        self.check(self.all_reduce(buffer, room, comm, stream))
        code = self.lib.ncclCommFinalize(comm)
        right &= code in ((0, IN_PROGRESS) if self.rank == 1 else (IN_PROGRESS,))
        if self.rank != 1:
            right &= self.error(comm) == IN_PROGRESS
            self.say(f"asked-{self.rank}")
        right &= self.polled(comm) == 0 and self.mock.cuStreamQuery(stream) == 0
        self.wait(stream)
        right &= bool(np.array_equal(room.get(), sum(self.data(rank, 300) for rank in range(self.nranks))))
        self.destroy(comm)
        return right

    def aborted_amid_a_creation(self) -> bool:
        """A watchdog ends a creation that the last rank never joins; the next one with all ranks is well."""
        right = True
        for blocking in (0, 1):
            unique = self.unique(f"never-{blocking}")
            if self.rank != 2:
                right &= self.ends_a_creation(unique, blocking)
        return right and self.works(self.comm("next"))

    def ends_a_creation(self, unique: UniqueId, blocking: int) -> bool:
        made, codes = Comm(), list[int]()
        thread = self.thread(lambda: codes.append(self.begin(made, unique, config(blocking))))
        self.until(lambda: made.value is not None)
        time.sleep(0.2)
        start = time.monotonic()
        self.check(self.lib.ncclCommAbort(made))
        thread.join(10)
        in_time = not thread.is_alive() and time.monotonic() - start < 5
        return in_time and (codes == [IN_PROGRESS] if blocking == 0 else codes[0] not in (0, IN_PROGRESS))

    def aborted_amid_a_split(self) -> bool:
        """A watchdog ends a part that the last rank never takes part in; the communicator goes on."""
        comm = Comm()
        self.begin(comm, self.unique("world"), config(0))
        self.comms.append(comm)
        right = self.polled(comm) == 0
        if self.rank != 2:
            code, part = self.split(comm, 0, self.rank)
            right &= code == IN_PROGRESS and self.error(part) == IN_PROGRESS
            time.sleep(0.1)
            start = time.monotonic()
            self.check(self.lib.ncclCommAbort(part))
            right &= time.monotonic() - start < 5
        right &= self.works(comm)
        # And the communicator itself, in a thread that blocks in a split.
        second = self.comm("second")
        if self.rank != 2:
            watchdog = threading.Timer(0.2, lambda: self.lib.ncclCommAbort(second))
            watchdog.start()
            start = time.monotonic()
            code, part = self.split(second, 0, self.rank)
            watchdog.join()
            right &= time.monotonic() - start < 5 and code not in (0, IN_PROGRESS) and part.value is None
            self.comms = [comm]
        return right and self.works(comm)

    def shrunk_to_the_living(self) -> bool:
        """Rank 1 dies, or is stuck, while the others call: they go on without it (NCCL_SHRINK_ABORT)."""
        comm, stream, how = self.comm(), self.stream(), self.given["how"]
        right = self.works(comm)
        self.meet("used")
        if self.rank == 1 and how == "died":
            self.say("end-1")
            os._exit(0)
        if self.rank == 1:
            self.until(lambda: self.error(comm) == REMOTE_ERROR)
            self.comms = []
            self.check(self.lib.ncclCommAbort(comm))
            return right
        code = self.all_reduce(self.buffer(self.data(self.rank, 100)), self.room(100), comm, stream)
        if how == "died":
            self.until(lambda: self.error(comm) != 0)
        right &= code in (0, REMOTE_ERROR)  # the other one may have begun to go on
        part, left_out = Comm(), (ctypes.c_int * 1)(1)
        self.check(self.lib.ncclCommShrink(comm, left_out, 1, ctypes.byref(part), None, SHRINK_ABORT))
        self.comms.append(part)
        self.wait(stream)
        right &= self.works(part, 300, [0, 2]) and self.error(comm) != 0
        self.check(self.lib.ncclCommAbort(comm))
        self.comms = [part]
        right &= self.works(part, 100, [0, 2])
        self.destroy(part)
        return right

    def aborted_amid_calls(self) -> bool:
        """A watchdog aborts a communicator while this thread makes calls that rank 1 never joins."""
        comm, stream = self.comm(), self.stream()
        right = self.works(comm)
        self.meet("used")
        if self.rank == 1:
            self.hear("ended-0")
            self.hear("ended-2")
            self.comms = []
            self.check(self.lib.ncclCommAbort(comm))
            return right and self.works(self.comm("next"))
        buffer, room = self.buffer(self.data(self.rank, 100)), self.room(100)
        self.check(self.all_reduce(buffer, room, comm, stream))
        watchdog = threading.Timer(0.2, lambda: self.lib.ncclCommAbort(comm))
        watchdog.start()
        code, start = 0, time.monotonic()
        while code == 0 and time.monotonic() - start < 20:
            code = self.all_reduce(buffer, room, comm, stream)
            time.sleep(0.001)
        watchdog.join()
        self.comms = []
        self.wait(stream)
        self.say(f"ended-{self.rank}")
        return right and code != 0 and self.works(self.comm("next"))

    def asked_all_the_time(self) -> bool:
        """A watchdog asks after errors as fast as it can while communicators come, are used and go."""
        known, stop, wrong = list[Comm](), threading.Event(), list[int]()

        def watch() -> None:
            state = ctypes.c_int()
            while not stop.is_set():
                for comm in list(known):
                    code = self.lib.ncclCommGetAsyncError(comm, ctypes.byref(state))
                    # Gone meanwhile, or all is well.
                    if code not in (0, INVALID_ARGUMENT) or (code == 0 and state.value not in (0, INVALID_USAGE)):
                        wrong.append(code or state.value)
                time.sleep(0)

        thread = threading.Thread(target=watch)
        thread.start()
        right = True
        for turn in range(3):
            comm = self.comm(str(turn))
            known.append(comm)
            right &= all(self.works(comm, 20 + count) for count in range(5))
            known.remove(comm)
            self.destroy(comm)
        stop.set()
        thread.join()
        return right and not wrong

    # Calls.

    def nothing_among_something(self) -> bool:
        """Groups with collectives and transfers without elements, also on a captured stream."""
        comm, stream, lib, size = self.comm(), self.stream(), self.lib, ctypes.c_size_t
        after, before = (self.rank + 1) % self.nranks, (self.rank - 1) % self.nranks
        mine, room, empty = self.buffer(self.data(self.rank, 60)), self.room(60), self.buffer(self.data(0, 0))
        gathered, got, sent = self.room(60 * self.nranks), self.room(60), self.buffer(self.data(self.rank, 60, 2))

        def calls() -> None:
            where = (ctypes.c_void_p(mine.at), ctypes.c_void_p(room.at))
            self.group(
                lambda: lib.ncclAllReduce(*where, size(0), FLOAT, 0, comm, stream),
                partial(self.send, empty, after, comm, stream),
                lambda: lib.ncclAllGather(where[0], ctypes.c_void_p(gathered.at), size(60), FLOAT, comm, stream),
                partial(self.recv, empty, before, comm, stream),
                lambda: lib.ncclReduceScatter(None, None, size(0), FLOAT, 0, comm, stream),
                partial(self.recv, got, before, comm, stream),
                lambda: lib.ncclAlltoAll(None, None, size(0), FLOAT, comm, stream),
                lambda: lib.ncclAllReduce(*where, size(60), FLOAT, 0, comm, stream),
                partial(self.send, sent, after, comm, stream),
                lambda: lib.ncclBroadcast(None, None, size(0), FLOAT, 1, comm, stream),
                lambda: lib.ncclGather(None, None, size(0), FLOAT, 2, comm, stream),
            )

        def right() -> bool:
            self.wait(stream)
            whole = np.concatenate([self.data(rank, 60) for rank in range(self.nranks)])
            sums = sum(self.data(rank, 60) for rank in range(self.nranks))
            good = np.array_equal(gathered.get(), whole) and np.array_equal(room.get(), sums)
            good &= self.got(got, before, 60, 2)
            for buffer in (gathered, room, got):
                buffer.set(buffer.like)
            self.meet(f"cleared-{len(seen)}")
            seen.append(good)
            return bool(good)

        seen: list[bool] = []
        calls()
        good = right()
        self.group(partial(self.send, empty, after, comm, stream), partial(self.recv, empty, before, comm, stream))
        ready = self.captured(stream, calls)
        for _ in range(2):
            self.cuda(self.mock.cuGraphLaunch(ready, stream))
            good &= right()
        return good

    def in_place_by_offsets(self) -> bool:
        """Parts of one large buffer, as FSDP and bucketed optimizers have them: in place, at odd offsets."""
        comm, stream, lib, right = self.comm(), self.stream(), self.lib, True
        everybody = range(self.nranks)
        for offset, count in ((0, 64), (1, 33), (3, 257), (6, 1)):
            whole = self.room(offset + count * self.nranks + 5)
            expected = whole.like.copy()
            mine = whole.like.copy()
            at = offset + self.rank * count
            mine[at : at + count] = self.data(self.rank, count)
            whole.set(mine)
            begin, own = whole.at + 4 * offset, whole.at + 4 * at
            n, ends = ctypes.c_size_t(count), (comm, stream)
            self.check(lib.ncclAllGather(ctypes.c_void_p(own), ctypes.c_void_p(begin), n, FLOAT, *ends))
            self.wait(stream)
            gathered = np.concatenate([self.data(rank, count) for rank in everybody])
            expected[offset : offset + count * self.nranks] = gathered
            right &= bool(np.array_equal(whole.get(), expected))
            # The same buffer again: a reduce_scatter in place, where each rank keeps its part of the sums.
            self.check(lib.ncclReduceScatter(ctypes.c_void_p(begin), ctypes.c_void_p(own), n, FLOAT, 0, *ends))
            self.wait(stream)
            expected[at : at + count] = gathered[self.rank * count : (self.rank + 1) * count] * self.nranks
            right &= bool(np.array_equal(whole.get(), expected))
            self.check(lib.ncclBroadcast(ctypes.c_void_p(own), ctypes.c_void_p(own), n, FLOAT, 2, *ends))
            self.wait(stream)
            theirs = gathered[2 * count : 3 * count] * self.nranks
            expected[at : at + count] = theirs
            right &= bool(np.array_equal(whole.get(), expected))
        return right

    def called_from_another_device(self) -> bool:
        """A thread calls whose current GPU is another one, or none: the communicator's GPU is what counts."""
        count = ctypes.c_int()
        self.cuda(self.mock.cuDeviceGetCount(ctypes.byref(count)))
        comm, stream, right = self.comm(), self.stream(), True
        for turn, other in enumerate((None, (self.rank + 1) % count.value)):
            mine, room = self.buffer(self.data(self.rank, 150, turn)), self.room(150)
            codes: list[int] = []

            def call(other: int | None = other, mine: Buffer = mine, room: Buffer = room) -> None:
                if other is not None:
                    self.use(other)
                codes.append(self.all_reduce(mine, room, comm, stream))  # noqa: B023
                now = ctypes.c_void_p()
                self.mock.cuCtxGetCurrent(ctypes.byref(now))
                codes.append(int((now.value is None) == (other is None)))  # noqa: B023

            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            self.wait(stream)
            right &= codes == [0, 1]
            right &= bool(np.array_equal(room.get(), sum(self.data(rank, 150, turn) for rank in range(self.nranks))))
        return right

    def a_mistake_in_a_group(self) -> bool:
        """A group with a mistake on only one rank does nothing; the same group without it works."""
        comm, stream, size = self.comm(), self.stream(), ctypes.c_size_t
        mine, room = self.buffer(self.data(self.rank, 80)), self.room(80)
        right = True
        if self.rank == 1:
            self.check(self.lib.ncclGroupStart())
            self.check(self.all_reduce(mine, room, comm, stream))
            where = (ctypes.c_void_p(mine.at), ctypes.c_void_p(room.at))
            right &= self.lib.ncclBroadcast(*where, size(80), FLOAT, 9, comm, stream) == INVALID_ARGUMENT
            right &= self.lib.ncclGroupEnd() == INVALID_ARGUMENT
            right &= self.error(comm) == 0
        self.group(partial(self.all_reduce, mine, room, comm, stream))
        self.wait(stream)
        right &= bool(np.array_equal(room.get(), sum(self.data(rank, 80) for rank in range(self.nranks))))
        return right and self.works(comm)

    def alone(self) -> bool:
        """A communicator of one rank, as new_group([rank]) makes them: everything is a copy, also to itself."""
        comm, stream, lib, right = self.comm(f"alone-{self.rank}", [self.rank]), self.stream(), self.lib, True
        data, n = self.data(self.rank, 120), ctypes.c_size_t(120)
        calls: list[tuple[Any, list[int]]] = [
            (lib.ncclAllReduce, [FLOAT, 4]),
            (lib.ncclBroadcast, [FLOAT, 0]),
            (lib.ncclReduce, [FLOAT, 0, 0]),
            (lib.ncclAllGather, [FLOAT]),
            (lib.ncclReduceScatter, [FLOAT, 2]),
            (lib.ncclAlltoAll, [FLOAT]),
            (lib.ncclGather, [FLOAT, 0]),
            (lib.ncclScatter, [FLOAT, 0]),
        ]
        for function, middle in calls:
            for in_place in (False, True):
                source = self.buffer(data)
                target = source if in_place else self.room(120)
                self.check(function(ctypes.c_void_p(source.at), ctypes.c_void_p(target.at), n, *middle, comm, stream))
                self.wait(stream)
                right &= bool(np.array_equal(target.get(), data))
        room = self.room(120)
        self.group(partial(self.send, self.buffer(data), 0, comm, stream), partial(self.recv, room, 0, comm, stream))
        self.wait(stream)
        right &= bool(np.array_equal(room.get(), data))
        code, part = self.split(comm, NO_COLOR, 0)
        return right and code == 0 and part.value is None
