"""Ranks of a CUDA library on the mock driver. test_cuda_runtime.py runs this file as a process.

    mock_program.py LIBRARY DEVICES SCRIPT

DEVICES is one device number per rank. SCRIPT is JSON: a list of groups, each a list of calls
[collective, type, op, root, count, in_place]. Prints a JSON object: what failed, and counts of driver calls.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from collc.bench.data import OPS, TYPES, Case
from collc.bench.nccl import Nccl, UniqueId
from collc.collectives.blocks import in_place_offsets
from collc.collectives.model import Collective


class Memory:
    """A buffer from ncclMemAlloc: on the mock, memory that the host can see too. Never freed, but counted.

    With REGISTERED_MEMORY set, a buffer of cudaMalloc, registered with the communicator that uses it.
    """

    made = 0

    def __init__(self, nccl: Nccl, content: np.ndarray, comm: ctypes.c_void_p | None = None) -> None:
        at, handle, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(max(content.nbytes, 1))
        if comm is not None and "REGISTERED_MEMORY" in os.environ:
            assert ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(at), size) == 0
            nccl.check(nccl.lib.ncclCommRegister(comm, at, size, ctypes.byref(handle)), "ncclCommRegister")
        else:
            nccl.check(nccl.lib.ncclMemAlloc(ctypes.byref(at), size), "ncclMemAlloc")
        assert at.value
        Memory.made += 1
        self.at, self.like = at.value, content
        ctypes.memmove(self.at, content.ctypes.data, content.nbytes)

    def bytes(self) -> bytes:
        return ctypes.string_at(self.at, self.like.nbytes)


def synchronize(mock: ctypes.CDLL) -> int:
    """Waits for every GPU that this process sees; the first error."""
    count, context, error = ctypes.c_int(), ctypes.c_void_p(), 0
    mock.cuDeviceGetCount(ctypes.byref(count))
    for device in range(count.value):
        mock.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        mock.cuCtxPushCurrent_v2(context)
        error = error or mock.cuCtxSynchronize()
        mock.cuCtxPopCurrent_v2(ctypes.byref(context))
    return error


@contextmanager
def gpu_of(nccl: Nccl, comm: ctypes.c_void_p) -> Iterator[None]:
    """Makes the GPU of a communicator's rank the current one: others may not reach what is allocated on it."""
    mock = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    nccl.check(nccl.lib.ncclCommCuDevice(comm, ctypes.byref(device)), "ncclCommCuDevice")
    mock.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    mock.cuCtxPushCurrent_v2(context)
    yield
    mock.cuCtxPopCurrent_v2(ctypes.byref(context))


Row = tuple[int, int, Memory, bytes]


def prepare(nccl: Nccl, case: Case, in_place: bool, comms: Sequence[ctypes.c_void_p]) -> list[Row]:
    """Per rank: addresses of input and output, the memory of the output, what it must hold at the end."""
    made = []
    for rank in range(case.nranks):
        with gpu_of(nccl, comms[rank]):
            made.append(prepare_rank(nccl, case, in_place, rank, comms[rank]))
    return made


def prepare_rank(nccl: Nccl, case: Case, in_place: bool, rank: int, comm: ctypes.c_void_p) -> Row:
    size = case.kind.size
    data = case.send_data(rank)
    many = max(case.send_elements, case.recv_elements) if in_place else case.recv_elements
    after = np.frombuffer(b"\xcd" * (many * size), dtype=case.kind.carrier).copy()
    in_at, out_at = (at * case.count * in_place for at in in_place_offsets(case.collective, rank))
    if in_place:
        after[in_at : in_at + case.send_elements] = data
    output = Memory(nccl, after, comm)
    start = output.at + in_at * size if in_place else Memory(nccl, data, comm).at
    result = case.expected(rank)
    if result is not None:
        after[out_at : out_at + case.recv_elements] = result
    return start, output.at + out_at * size, output, after.tobytes()


class Config(ctypes.Structure):
    """ncclConfig_t as far as maxCTAs and the network after it: callers of older versions hand over a shorter one."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        *((name, ctypes.c_int) for name in ("blocking", "cgaClusterSize", "minCTAs", "maxCTAs")),
        ("netName", ctypes.c_void_p),
    ]


def init_with_config(nccl: Nccl, comms: ctypes.Array[ctypes.c_void_p], most: int) -> None:
    """All ranks on GPU 0, with maxCTAs."""
    mock = ctypes.CDLL("libcuda.so.1")
    context, undefined = ctypes.c_void_p(), -(1 << 31)
    assert mock.cuInit(0) == 0
    assert mock.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert mock.cuCtxSetCurrent(context) == 0
    config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, undefined, undefined, undefined, most, None)
    unique = UniqueId.from_buffer_copy(nccl.unique_id())
    lib, nranks, size = nccl.lib, len(comms), ctypes.sizeof(ctypes.c_void_p)
    nccl.check(lib.ncclGroupStart(), "ncclGroupStart")
    for rank in range(nranks):
        place = ctypes.c_void_p(ctypes.addressof(comms) + rank * size)
        code = lib.ncclCommInitRankConfig(place, nranks, unique, rank, ctypes.byref(config))
        nccl.check(code, "ncclCommInitRankConfig")
    nccl.check(lib.ncclGroupEnd(), "ncclGroupEnd")


def main() -> dict[str, object]:
    library, devices, script = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    nccl = Nccl(Path(library))
    lib, nranks = nccl.lib, len(devices)
    comms = (ctypes.c_void_p * nranks)()
    if most := os.environ.get("MOCK_MAX_CTAS"):
        init_with_config(nccl, comms, int(most))
    else:
        nccl.check(lib.ncclCommInitAll(comms, nranks, (ctypes.c_int * nranks)(*devices)), "ncclCommInitAll")
    mock = ctypes.CDLL("libcuda.so.1")
    handles = [ctypes.c_void_p(comm) for comm in comms]
    wrong = []
    for number, group in enumerate(script):
        nccl.check(lib.ncclGroupStart(), "ncclGroupStart")
        buffers = []
        for name, type_name, op, root, count, in_place, *only in group:
            case = Case(Collective(name), nranks, root, count, TYPES[type_name], op)
            rows = prepare(nccl, case, in_place, handles)
            for rank in only[0] if only else range(nranks):
                send, recv, _, _ = rows[rank]
                code = nccl.call(
                    case.collective, send, recv, count, case.kind.number, OPS.get(op, 0), root, handles[rank]
                )
                nccl.check(code, name)
            buffers.append(rows)
        nccl.check(lib.ncclGroupEnd(), "ncclGroupEnd")
        if synchronize(mock):
            wrong.append(f"group {number} failed on the device")
        for call, rows in zip(group, buffers, strict=True):
            wrong += [f"group {number}, {call}, rank {r}" for r, row in enumerate(rows) if row[2].bytes() != row[3]]
    for handle in handles:
        nccl.check(lib.ncclCommDestroy(handle), "ncclCommDestroy")
    names = ["launch", "launch_cooperative", "copy", "enable_peer", "allocate", "release", "record", "wait"]
    names += ["Simple", "LL", "LL128", "blocks", "written", "occupancy"]
    return {"wrong": wrong, "calls": {name: mock.mock_calls(name.encode()) for name in names}}


if __name__ == "__main__":
    try:
        print(json.dumps(main()))
    except Exception as error:
        print(json.dumps({"error": str(error)}))
