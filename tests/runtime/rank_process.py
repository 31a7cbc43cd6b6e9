"""One rank as a process that the fault tests can order about: reads JSON lines, answers in kind.

Orders: {"do": "id"}, {"do": "init", nranks, id, rank}, {"do": "call", collective, count, type, op, root, times},
{"do": "error"}, {"do": "destroy"}, {"do": "abort"}, {"do": "cpu"}, {"do": "open"}, {"do": "barriers"},
{"do": "environment", name, value}.
An answer has "result", NCCL's number of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from collc.bench.nccl import Nccl, UniqueId
from collc.collectives.model import Collective


class RankProcess:
    def __init__(self, library: Path) -> None:
        self.nccl = Nccl(library)
        self.comm = ctypes.c_void_p()
        self.nranks = 1

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        lib = self.nccl.lib
        match order["do"]:
            case "id":
                return {"result": 0, "id": self.nccl.unique_id().hex()}
            case "init":
                self.nranks = order["nranks"]
                value = UniqueId.from_buffer_copy(bytes.fromhex(order["id"]))
                return self.answer(lib.ncclCommInitRank(ctypes.byref(self.comm), self.nranks, value, order["rank"]))
            case "call":
                return self.call(order)
            case "error":
                state = ctypes.c_int(-1)
                lib.ncclCommGetAsyncError(self.comm, ctypes.byref(state))
                return {"result": state.value}
            case "destroy":
                return self.answer(lib.ncclCommDestroy(self.comm))
            case "abort":
                return self.answer(lib.ncclCommAbort(self.comm))
            case "environment":
                os.environ[order["name"]] = order["value"]
                return {"result": 0}
            case "barriers":  # with refuse_membarrier.c preloaded
                return {"result": 0, "count": ctypes.CDLL(None).barriers()}
            case "cpu":
                return {"result": 0, "seconds": time.process_time()}
            case _:
                return {
                    "result": 0,
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "threads": len(os.listdir("/proc/self/task")),
                }

    def call(self, order: dict[str, Any]) -> dict[str, Any]:
        count = order.get("count", 100)
        send = np.ones(count * self.nranks, dtype=np.float64)
        recv = np.zeros(count * self.nranks, dtype=np.float64)
        result, start = 0, time.monotonic()
        for _ in range(order.get("times", 1)):
            result = self.nccl.call(
                Collective(order.get("collective", "all_reduce")),
                send.ctypes.data,
                recv.ctypes.data,
                count,
                order.get("type", 7),
                order.get("op", 0),
                order.get("root", 0),
                self.comm,
            )
            if result:
                break
        return {**self.answer(result), "seconds": time.monotonic() - start}

    def answer(self, result: int) -> dict[str, Any]:
        return {"result": result, "text": self.nccl.lib.ncclGetLastError(None).decode() if result else ""}


def serve(rank: RankProcess) -> None:
    for line in sys.stdin:
        print(json.dumps(rank.do(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve(RankProcess(Path(sys.argv[1])))
