"""Counts the driver calls of collective calls, on the mock. test_launch_cost.py runs this file as a process.

    mock_cost.py LIBRARY GPUS

GPUS: the GPU of each rank, as JSON; all ranks are in this process. Prints a JSON object: what is called -> counts of
driver calls by name, of all ranks together.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mock_program import Memory, gpu_of, synchronize

from collc.bench.nccl import Nccl

COUNTED = ("context", "is_capturing", "stream_id", "launch", "launch_cooperative", "record", "wait", "copy")
FLOAT, SUM, COUNT = 7, 0, 64


class Ranks:
    def __init__(self, path: Path, gpus: list[int]) -> None:
        self.nccl, self.mock, self.n = Nccl(path), ctypes.CDLL("libcuda.so.1"), len(gpus)
        lib = self.nccl.lib
        comms = (ctypes.c_void_p * self.n)()
        self.nccl.check(lib.ncclCommInitAll(comms, self.n, (ctypes.c_int * self.n)(*gpus)), "ncclCommInitAll")
        self.comms = [ctypes.c_void_p(comm) for comm in comms]
        self.streams, self.buffers = [], []
        for comm in self.comms:
            with gpu_of(self.nccl, comm):
                stream = ctypes.c_void_p()
                assert self.mock.cuStreamCreate(ctypes.byref(stream), 1) == 0
                self.streams.append(stream)
                self.buffers.append([self.nccl_memory() for _ in range(2)])

    def nccl_memory(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(Memory(self.nccl, np.zeros(COUNT, "f4")).at)

    def group(self, times: int, streams: list[ctypes.c_void_p]) -> None:
        """Makes `times` calls of every rank in one group."""
        lib = self.nccl.lib
        self.nccl.check(lib.ncclGroupStart(), "ncclGroupStart")
        for _ in range(times):
            for rank in range(self.n):
                send, recv = self.buffers[rank]
                size = ctypes.c_size_t(COUNT)
                code = lib.ncclAllReduce(send, recv, size, FLOAT, SUM, self.comms[rank], streams[rank])
                self.nccl.check(code, "ncclAllReduce")
        self.nccl.check(lib.ncclGroupEnd(), "ncclGroupEnd")

    def swap(self, streams: list[ctypes.c_void_p]) -> None:
        """Every rank sends to each other one and receives from it, in one group."""
        lib = self.nccl.lib
        self.nccl.check(lib.ncclGroupStart(), "ncclGroupStart")
        for rank in range(self.n):
            send, recv = self.buffers[rank]
            for peer in range(self.n):
                if peer != rank:
                    given = (ctypes.c_size_t(8), FLOAT, peer, self.comms[rank], streams[rank])
                    self.nccl.check(lib.ncclSend(send, *given), "ncclSend")
                    self.nccl.check(lib.ncclRecv(recv, *given), "ncclRecv")
        self.nccl.check(lib.ncclGroupEnd(), "ncclGroupEnd")

    def counted(self, body: Callable[[], None]) -> dict[str, int]:
        before = {name: self.mock.mock_calls(name.encode()) for name in COUNTED}
        body()
        after = {name: self.mock.mock_calls(name.encode()) for name in COUNTED}
        assert synchronize(self.mock) == 0
        return {name: after[name] - before[name] for name in COUNTED if after[name] != before[name]}


def main(path: str, gpus: str) -> dict[str, dict[str, int]]:
    ranks = Ranks(Path(path), json.loads(gpus))
    own, one = ranks.streams, [ranks.streams[0]] * ranks.n
    same_gpu = len(set(json.loads(gpus))) == 1
    streams = one if same_gpu else own
    ranks.group(1, streams)  # the first one of a stream
    found = {
        "a call": ranks.counted(lambda: ranks.group(1, streams)),
        "a group of four": ranks.counted(lambda: ranks.group(4, streams)),
        "transfers": ranks.counted(lambda: ranks.swap(streams)),
    }
    if same_gpu:
        ranks.group(1, own)
        found["a call on streams of their own"] = ranks.counted(lambda: ranks.group(1, own))
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
