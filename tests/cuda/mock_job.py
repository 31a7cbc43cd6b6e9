"""One rank of a job in a process of its own on the mock driver: what the scenarios of mock_scenarios.py are made of."""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np

from collc.bench.nccl import Nccl, UniqueId
from collc.errors import CollcError

Array = np.ndarray[Any, Any]
Comm = ctypes.c_void_p
PATIENCE = float(os.environ.get("MOCK_JOB_PATIENCE", "60"))
FLOAT = 7


class Buffer:
    """GPU memory, which on the mock the host sees too; it is never freed."""

    made = 0

    def __init__(self, job: Job, content: Array) -> None:
        at = ctypes.c_void_p()
        size = ctypes.c_size_t(max(content.nbytes, 16))
        job.nccl.check(job.lib.ncclMemAlloc(ctypes.byref(at), size), "ncclMemAlloc")
        assert at.value
        Buffer.made += 1
        self.at, self.like = at.value, content
        self.set(content)

    def set(self, content: Array) -> None:
        ctypes.memmove(self.at, content.ctypes.data, content.nbytes)

    def get(self) -> Array:
        return np.frombuffer(ctypes.string_at(self.at, self.like.nbytes), dtype=self.like.dtype)


class Job:
    def __init__(self, library: Path, rank: int, nranks: int, folder: Path, given: dict[str, Any]) -> None:
        self.nccl = Nccl(library)
        self.lib = self.nccl.lib
        self.mock = ctypes.CDLL("libcuda.so.1")
        self.library, self.rank, self.nranks, self.folder, self.given = library, rank, nranks, folder, given
        self.prefix, self.chance = "", random.Random(0)
        self.comms: list[Comm] = []
        count = ctypes.c_int()
        self.cuda(self.mock.cuInit(0))
        self.cuda(self.mock.cuDeviceGetCount(ctypes.byref(count)))
        self.use(rank % count.value)

    def as_threads(self, nranks: int, body: Callable[[Self, int, Comm, ctypes.c_void_p], None]) -> list[str]:
        """Runs a body for each rank of a communicator of this process, each in a new thread. Returns the failures."""
        unique, failed = UniqueId.from_buffer_copy(self.nccl.unique_id()), list[str]()

        def rank_of(rank: int) -> None:
            try:
                one = type(self)(self.library, rank, nranks, self.folder, self.given)
                comm, stream = Comm(), one.stream()
                one.check(one.lib.ncclCommInitRank(ctypes.byref(comm), nranks, unique, rank))
                body(one, rank, comm, stream)
                one.check(one.lib.ncclCommDestroy(comm))
            except (RuntimeError, CollcError) as error:
                failed.append(f"rank {rank}: {error}")

        threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(nranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failed

    def use(self, device: int) -> None:
        context = ctypes.c_void_p()
        self.cuda(self.mock.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.cuda(self.mock.cuCtxSetCurrent(context))

    def cuda(self, result: int) -> None:
        if result:
            raise RuntimeError(f"the driver says {result}")

    def captured(self, stream: ctypes.c_void_p, body: Callable[[], object]) -> ctypes.c_void_p:
        """Returns a graph of the work that `body` puts on a stream, ready to be launched."""
        self.cuda(self.mock.cuStreamBeginCapture_v2(stream, 0))
        body()
        return self.end_capture(stream)

    def end_capture(self, stream: ctypes.c_void_p) -> ctypes.c_void_p:
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self.cuda(self.mock.cuStreamEndCapture(stream, ctypes.byref(graph)))
        self.cuda(self.mock.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_ulonglong(0)))
        self.cuda(self.mock.cuGraphDestroy(graph))
        return ready

    def check(self, result: int) -> None:
        self.nccl.check(result, "a call")

    # Meeting other ranks.

    def say(self, what: str, content: bytes = b"") -> None:
        part = self.folder / f"{self.prefix}{what}.part-{self.rank}"
        part.write_bytes(content)
        part.replace(self.folder / (self.prefix + what))

    def hear(self, what: str) -> bytes:
        start = time.monotonic()
        file = self.folder / (self.prefix + what)
        while not file.is_file():
            if time.monotonic() - start > PATIENCE:
                raise RuntimeError(f"nobody said {what}")
            time.sleep(0.002)
        return file.read_bytes()

    def meet(self, where: str) -> None:
        self.say(f"{where}-{self.rank}")
        for rank in range(self.nranks):
            self.hear(f"{where}-{rank}")

    def until(self, condition: Callable[[], bool]) -> None:
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > PATIENCE:
                raise RuntimeError("it does not come to that")
            time.sleep(0.005)

    def comm(self, name: str = "world", ranks: list[int] | None = None) -> Comm:
        members = ranks or list(range(self.nranks))
        if members[0] == self.rank:
            self.say(f"id-{name}", self.nccl.unique_id())
        made = Comm()
        unique = UniqueId.from_buffer_copy(self.hear(f"id-{name}"))
        code = self.lib.ncclCommInitRank(ctypes.byref(made), len(members), unique, members.index(self.rank))
        self.nccl.check(code, f"creating {name}")
        self.comms.append(made)
        return made

    def destroy(self, comm: Comm) -> None:
        self.comms = [other for other in self.comms if other is not comm]
        self.check(self.lib.ncclCommDestroy(comm))

    def sized(self, count: int) -> int:
        """A size as large as `count`, or another one where chance chooses sizes (random_jobs)."""
        return self.chance.randrange(1, 2 * count) if self.prefix else count

    # Work.

    def stream(self, flags: int = 1) -> ctypes.c_void_p:
        """Returns a new stream; 0: a stream that the legacy stream waits for."""
        made = ctypes.c_void_p()
        self.cuda(self.mock.cuStreamCreate(ctypes.byref(made), flags))
        return made

    def wait(self, stream: ctypes.c_void_p | None) -> None:
        self.cuda(self.mock.cuStreamSynchronize(stream))

    def data(self, rank: int, count: int, tag: int = 0) -> Array:
        """Returns the input of `rank`, which differs between tags."""
        numbers = np.arange(count, dtype=np.int64) * 7919 + rank * 104729 + tag * 1299709
        return (numbers % 251).astype(np.float32)

    def buffer(self, content: Array) -> Buffer:
        return Buffer(self, content)

    def room(self, count: int) -> Buffer:
        return Buffer(self, np.full(count, -1, dtype=np.float32))

    def group(self, *calls: Callable[[], int]) -> None:
        self.check(self.lib.ncclGroupStart())
        for call in calls:
            self.check(call())
        self.check(self.lib.ncclGroupEnd())

    def send(self, what: Buffer, peer: int, comm: Comm, stream: ctypes.c_void_p | None = None) -> int:
        size = ctypes.c_size_t(what.like.size)
        return int(self.lib.ncclSend(ctypes.c_void_p(what.at), size, FLOAT, peer, comm, stream))

    def recv(self, what: Buffer, peer: int, comm: Comm, stream: ctypes.c_void_p | None = None) -> int:
        size = ctypes.c_size_t(what.like.size)
        return int(self.lib.ncclRecv(ctypes.c_void_p(what.at), size, FLOAT, peer, comm, stream))

    def all_reduce(self, send: Buffer, recv: Buffer, comm: Comm, stream: ctypes.c_void_p | None = None) -> int:
        return int(self.lib.ncclAllReduce(send.at, recv.at, send.like.size, FLOAT, 0, comm, stream))

    def error(self, comm: Comm) -> int:
        state = ctypes.c_int(-1)
        self.check(self.lib.ncclCommGetAsyncError(comm, ctypes.byref(state)))
        return state.value

    def text(self) -> str:
        return str(self.lib.ncclGetLastError(None).decode())

    def sums_are_right(
        self, comm: Comm, count: int = 300, stream: ctypes.c_void_p | None = None, ranks: list[int] | None = None
    ) -> bool:
        """Returns whether an all_reduce over all ranks of the job, or over some, is right."""
        result = self.room(count)
        self.check(self.all_reduce(self.buffer(self.data(self.rank, count)), result, comm, stream))
        self.wait(stream)
        expected = sum(self.data(rank, count) for rank in ranks or range(self.nranks))
        return bool(np.array_equal(result.get(), expected))
