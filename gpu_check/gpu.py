"""The driver and a library as the parts of check.py use them: memory, streams, graphs, calls on all ranks of GPU 0."""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Name -> number in the API, numpy type that has its bytes.
TYPES = {
    "int8": (0, "i1"),
    "uint8": (1, "u1"),
    "int32": (2, "i4"),
    "uint32": (3, "u4"),
    "int64": (4, "i8"),
    "uint64": (5, "u8"),
    "half": (6, "f2"),
    "float": (7, "f4"),
    "double": (8, "f8"),
    "bfloat16": (9, "u2"),
    "e4m3": (10, "u1"),
    "e5m2": (11, "u1"),
}
FLOAT = TYPES["float"][0]
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
PROTOCOLS = ("Simple", "LL", "LL128")
# Attributes of a device, a flag of streams and a mode of capturing, as cuda.h numbers them.
MULTIPROCESSORS, CAPABILITY_MAJOR, CAPABILITY_MINOR = 16, 75, 76
NON_BLOCKING = 1
CAPTURE_GLOBAL = 0  # the strictest: no thread may make a call that a capture forbids


class CheckError(Exception):
    """A step that the check needs has failed."""


class Progress:
    """Reports where a part is; its row shows this if the part does not end. check.py sets `tell`."""

    tell: Callable[[str], None] = staticmethod(lambda text: None)


class Cuda:
    """The functions of the driver API that the check calls itself, on GPU 0."""

    def __init__(self) -> None:
        try:
            self.lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CheckError(f"no NVIDIA driver here: {error}") from error
        self("cuInit", 0)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self.lib, name)
        except AttributeError as error:
            raise CheckError(f"this driver has no {name}") from error
        status = function(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorString(status, ctypes.byref(text))
            raise CheckError(f"{name} failed with CUDA error {status}: {(text.value or b'').decode()}")

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self("cuDeviceGetAttribute", ctypes.byref(value), number, 0)
        return value.value

    def allocate(self, size: int) -> int:
        at = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(max(size, 1)))
        return at.value

    def release(self, at: int) -> None:
        self("cuMemFree_v2", ctypes.c_uint64(at))

    def put(self, at: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data)
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(at), ctypes.c_void_p(raw.ctypes.data), ctypes.c_size_t(raw.nbytes))

    def get(self, at: int, elements: int, carrier: str) -> np.ndarray:
        data = np.empty(elements, carrier)
        self("cuMemcpyDtoH_v2", ctypes.c_void_p(data.ctypes.data), ctypes.c_uint64(at), ctypes.c_size_t(data.nbytes))
        return data

    def copy(self, to: int, start: int, size: int, stream: ctypes.c_void_p | None = None) -> None:
        self("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(start), ctypes.c_size_t(size), stream)

    def stream(self) -> ctypes.c_void_p:
        """Returns a stream that does not wait for the null stream."""
        made = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(made), NON_BLOCKING)
        return made

    def follow(self, later: ctypes.c_void_p, earlier: ctypes.c_void_p) -> None:
        """Makes later work on one stream wait for all earlier work on another."""
        event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(event), 2)
        self("cuEventRecord", event, earlier)
        self("cuStreamWaitEvent", later, event, 0)
        self("cuEventDestroy_v2", event)

    def synchronize(self) -> None:
        self("cuCtxSynchronize")


class Lender(Cuda):
    """As Cuda, with buffers of a library's ncclMemAlloc, which other ranks may read in place."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.of = ctypes.CDLL(str(path))

    def allocate(self, size: int) -> int:
        at = ctypes.c_void_p()
        if self.of.ncclMemAlloc(ctypes.byref(at), ctypes.c_size_t(max(size, 1))) or at.value is None:
            raise CheckError(f"ncclMemAlloc has no {size} bytes")
        return at.value

    def release(self, at: int) -> None:
        if self.of.ncclMemFree(ctypes.c_void_p(at)):
            raise CheckError("ncclMemFree failed")


class Graph:
    """A captured graph of the work that `body` puts on a stream and on streams that fork from it and join it."""

    def __init__(self, cuda: Cuda, stream: ctypes.c_void_p, body: Callable[[], None]) -> None:
        self.cuda, self.stream = cuda, stream
        graph = ctypes.c_void_p()
        cuda("cuStreamBeginCapture_v2", stream, CAPTURE_GLOBAL)
        try:
            body()
        except CheckError:
            cuda.lib.cuStreamEndCapture(stream, ctypes.byref(graph))
            raise
        cuda("cuStreamEndCapture", stream, ctypes.byref(graph))
        self.ready = ctypes.c_void_p()
        cuda("cuGraphInstantiateWithFlags", ctypes.byref(self.ready), graph, ctypes.c_ulonglong(0))
        cuda("cuGraphDestroy", graph)

    def launch(self) -> None:
        self.cuda("cuGraphLaunch", self.ready, self.stream)

    def close(self) -> None:
        self.cuda("cuGraphExecDestroy", self.ready)


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest of a library."""
    lib = ctypes.CDLL(str(path))
    size = ctypes.c_uint64.in_dll(lib, "collc_manifest_size").value
    found: dict[str, Any] = json.loads((ctypes.c_char * size).in_dll(lib, "collc_manifest").raw)
    return found


def held_ranks(manifest: dict[str, Any]) -> list[int]:
    """Returns the numbers of ranks that a library has plans for, ascending."""
    return sorted({int(one["nranks"]) for one in manifest["allocations"]})


class Library:
    """A built library with a communicator of ranks on GPU 0."""

    first = 0  # the first rank of this process

    def __init__(self, path: Path, cuda: Cuda, nranks: int | None = None, protocol: str | None = None) -> None:
        self.path, self.cuda = path, cuda
        self.lib = ctypes.CDLL(str(path))
        self.manifest = read_manifest(path)
        self.nranks = nranks or held_ranks(self.manifest)[-1]
        served = [one for one in self.manifest["allocations"] if one["nranks"] == self.nranks]
        if not served:
            raise CheckError(f"{path.name} serves no {self.nranks} ranks")
        self.programs = served[0]["programs"]
        self.streams: Sequence[ctypes.c_void_p | None] = [None] * self.nranks
        # The library reads it when the communicator is created.
        os.environ.pop("COLLC_PROTO", None)
        if protocol is not None:
            os.environ["COLLC_PROTO"] = protocol
        self.create()

    def create(self) -> None:
        Progress.tell(f"making a communicator of {self.nranks} ranks")
        self.lib.ncclGetLastError.restype = ctypes.c_char_p
        self.comms = (ctypes.c_void_p * self.nranks)()
        self.check(self.lib.ncclCommInitAll(self.comms, self.nranks, (ctypes.c_int * self.nranks)()), "ncclCommInitAll")

    def check(self, status: int, what: str) -> None:
        if status:
            raise CheckError(f"{what}: {(self.lib.ncclGetLastError(None) or b'').decode()} [ncclResult_t {status}]")

    def look(self) -> None:
        """Raises the asynchronous error that the library's thread has found, such as the end of COLLC_TIMEOUT."""
        time.sleep(0.05)  # the thread polls every 5 ms
        for handle in self.comms:
            status = ctypes.c_int()
            self.check(
                self.lib.ncclCommGetAsyncError(ctypes.c_void_p(handle), ctypes.byref(status)), "asking for errors"
            )
            self.check(status.value, "in the kernels")

    def group(self, body: Callable[[int, ctypes.c_void_p, ctypes.c_void_p | None], int], what: str) -> None:
        """Makes the calls of all ranks in one group. `body` takes a rank, its communicator and its stream."""
        self.check(self.lib.ncclGroupStart(), "ncclGroupStart")
        for rank, handle in enumerate(self.comms):
            self.check(body(rank, ctypes.c_void_p(handle), self.streams[rank]), what)
        self.check(self.lib.ncclGroupEnd(), f"{what}, ncclGroupEnd")

    def factors(self, dtype: int, values: list[bytes]) -> int:
        """Creates a sum with a factor for each rank; returns its operation number, equal on all ranks."""
        op = ctypes.c_int()
        for rank, comm in enumerate(self.comms):
            self.check(
                self.lib.ncclRedOpCreatePreMulSum(ctypes.byref(op), values[rank], dtype, 1, ctypes.c_void_p(comm)),
                "ncclRedOpCreatePreMulSum",
            )
        return op.value

    def forget(self, op: int) -> None:
        """Destroys an operation of factors()."""
        for comm in self.comms:
            self.check(self.lib.ncclRedOpDestroy(op, ctypes.c_void_p(comm)), "ncclRedOpDestroy")

    def call(self, collective: str, ends: list[tuple[int, int]], count: int, dtype: int, op: int) -> None:
        """Makes one call on all ranks; a root is rank 0. `ends` are the addresses of input and output."""
        lib = self.lib

        def one(rank: int, comm: ctypes.c_void_p, stream: ctypes.c_void_p | None) -> int:
            head = (ctypes.c_void_p(ends[rank][0]), ctypes.c_void_p(ends[rank][1]), ctypes.c_size_t(count), dtype)
            if collective == "all_reduce":
                return int(lib.ncclAllReduce(*head, op, comm, stream))
            if collective == "reduce_scatter":
                return int(lib.ncclReduceScatter(*head, op, comm, stream))
            if collective == "reduce":
                return int(lib.ncclReduce(*head, op, 0, comm, stream))
            if collective == "broadcast":
                return int(lib.ncclBroadcast(*head, 0, comm, stream))
            if collective == "all_gather":
                return int(lib.ncclAllGather(*head, comm, stream))
            if collective == "gather":
                return int(lib.ncclGather(*head, 0, comm, stream))
            if collective == "scatter":
                return int(lib.ncclScatter(*head, 0, comm, stream))
            assert collective == "all_to_all", collective
            return int(lib.ncclAlltoAll(*head, comm, stream))

        self.group(one, collective)

    def pass_on(self, ends: list[tuple[int, int]], count: int, dtype: int) -> None:
        """Makes every rank send to the next rank and receive from the previous one."""
        lib, n, size = self.lib, self.nranks, ctypes.c_size_t(count)

        def one(at: int, comm: ctypes.c_void_p, stream: ctypes.c_void_p | None) -> int:
            (send, recv), rank = map(ctypes.c_void_p, ends[at]), self.first + at
            status = lib.ncclSend(send, size, dtype, (rank + 1) % n, comm, stream)
            return int(status or lib.ncclRecv(recv, size, dtype, (rank - 1) % n, comm, stream))

        self.group(one, "send and receive")

    def close(self) -> None:
        for handle in self.comms:
            self.check(self.lib.ncclCommDestroy(ctypes.c_void_p(handle)), "ncclCommDestroy")


class RealNccl(Library):
    """The real NCCL, all ranks on GPU 0, each with a separate stream: their kernels must run concurrently."""

    def __init__(self, path: Path, cuda: Cuda, nranks: int) -> None:
        self.path, self.cuda, self.nranks = path, cuda, nranks
        self.lib = ctypes.CDLL(str(path))
        self.streams = [cuda.stream() for _ in range(nranks)]
        self.create()


class Places:
    """Input and output buffers of every rank, as large as the largest call."""

    def __init__(self, cuda: Cuda, nranks: int, size: int) -> None:
        self.cuda = cuda
        self.ends = [(cuda.allocate(size), cuda.allocate(size)) for _ in range(nranks)]

    def release(self) -> None:
        for pair in self.ends:
            for at in pair:
                self.cuda.release(at)
