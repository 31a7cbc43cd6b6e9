"""One rank as a process that the fault tests can order about: reads JSON lines, answers in kind.

Orders: {"do": "id", times}, {"do": "init", nranks, id, rank, config, ends}, {"do": "init_all", nranks},
{"do": "split", color, config}, {"do": "call", collective, count, type, op, root, times, together}, where "send" and
"recv" have their peer as the root, `together` starts the clock when all ranks are ready, and the call
is aborted after `aborts` seconds;
{"do": "error"}, {"do": "finalize"}, {"do": "destroy"}, {"do": "abort"}, {"do": "cpu"}, {"do": "open"},
{"do": "barriers"}, {"do": "fork_later", after}, {"do": "environment", name, value}, {"do": "exhaust", limit};
{"do": "lose", name}: a class of links;
{"do": "limit", of, to} sets an RLIMIT_; and habits that do a rank no harm: {"do": "fork"}, {"do": "close"},
{"do": "execute"}, {"do": "thread"}.
An answer has "result", NCCL's number of it. `config` is "bad" for one that is not initialized; `ends`: how the process
ends after a failure, without an answer. `fork_later` makes a child that outlives the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
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
                made = [self.nccl.unique_id() for _ in range(order.get("times", 1))]
                return {"result": 0, "id": made[-1].hex()}
            case "init":
                return self.init(order)
            case "init_all":
                comms = (ctypes.c_void_p * order["nranks"])()
                return self.answer(lib.ncclCommInitAll(comms, order["nranks"], None))
            case "split":
                part, config = ctypes.c_void_p(), config_of(order)
                return self.answer(lib.ncclCommSplit(self.comm, order["color"], 0, ctypes.byref(part), config))
            case "fork_later":
                threading.Thread(target=fork_after, args=(order["after"],), daemon=True).start()
                return {"result": 0}
            case "exhaust":
                return {"result": 0, "opened": exhaust(order["limit"])}
            case "call":
                return self.call(order)
            case "error":
                state = ctypes.c_int(-1)
                lib.ncclCommGetAsyncError(self.comm, ctypes.byref(state))
                return {"result": state.value}
            case "finalize":
                return self.answer(lib.ncclCommFinalize(self.comm))
            case "destroy":
                return self.answer(lib.ncclCommDestroy(self.comm))
            case "abort":
                return self.answer(lib.ncclCommAbort(self.comm))
            case "lose":
                return {"result": 0, "lost": lib.collc_lose_class(self.comm, order["name"].encode())}
            case "environment":
                os.environ[order["name"]] = order["value"]
                return {"result": 0}
            case "limit":
                of = getattr(resource, f"RLIMIT_{order['of']}")
                resource.setrlimit(of, (order["to"], resource.getrlimit(of)[1]))
                return {"result": 0}
            case "fork" | "close" | "execute" | "thread":
                getattr(self, order["do"])()
                return {"result": 0}
            case "barriers":  # with refuse_membarrier.c preloaded
                return {"result": 0, "count": ctypes.CDLL(None).barriers()}
            case "cpu":
                return {"result": 0, "seconds": time.process_time()}
            case _:
                return {
                    "result": 0,
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "highest": max(map(int, os.listdir("/proc/self/fd"))),
                    "threads": len(os.listdir("/proc/self/task")),
                }

    def fork(self) -> None:
        """One child that ends, one that outlives this process for a while."""
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        if os.fork() == 0:
            signal.alarm(20)
            os.closerange(0, 3)
            signal.pause()

    def close(self) -> None:
        """Every descriptor, and takes their numbers for something else."""
        os.closerange(3, 1024)
        for _ in range(30):
            os.open("/dev/null", os.O_RDONLY)

    def execute(self) -> None:
        subprocess.run(["true"], check=True)

    def thread(self) -> None:
        """A thread that comes and goes, and has asked for the communicator."""
        asked = threading.Thread(target=self.do, args=({"do": "error"},))
        asked.start()
        asked.join()

    def init(self, order: dict[str, Any]) -> dict[str, Any]:
        self.nranks = order["nranks"]
        value = UniqueId.from_buffer_copy(bytes.fromhex(order["id"]))
        if "config" in order:
            args = (self.nranks, value, order["rank"], config_of(order))
            result = self.nccl.lib.ncclCommInitRankConfig(ctypes.byref(self.comm), *args)
        else:
            result = self.nccl.lib.ncclCommInitRank(ctypes.byref(self.comm), self.nranks, value, order["rank"])
        if result and order.get("ends") == "at once":
            os._exit(1)
        if result and order.get("ends") == "in order":
            sys.exit(1)
        return self.answer(result)

    def call(self, order: dict[str, Any]) -> dict[str, Any]:
        count = order.get("count", 100)
        one_block = order.get("collective", "all_reduce") in ("all_reduce", "broadcast", "reduce")
        send = np.ones(count * (1 if one_block else self.nranks), dtype=np.float64)
        recv = np.zeros_like(send)
        result = 0
        if order.get("together"):
            recv.fill(1)  # its pages are there
            result = self.nccl.call(Collective.ALL_REDUCE, send.ctypes.data, recv.ctypes.data, 1, 7, 0, 0, self.comm)
        start = time.monotonic()
        for _ in range(0 if result else order.get("times", 1)):
            result = self.call_once(order, send.ctypes.data, recv.ctypes.data, count)
            if result:
                break
        return {**self.answer(result), "seconds": time.monotonic() - start}

    def call_once(self, order: dict[str, Any], send: int, recv: int, count: int) -> int:
        lib, dtype, root = self.nccl.lib, order.get("type", 7), order.get("root", 0)
        match name := order.get("collective", "all_reduce"):
            case "alltoall":
                return int(
                    lib.ncclAlltoAll(
                        ctypes.c_void_p(send), ctypes.c_void_p(recv), ctypes.c_size_t(count), dtype, self.comm, None
                    )
                )
            case "gather" | "scatter":
                call = lib.ncclGather if name == "gather" else lib.ncclScatter
                pointers = (ctypes.c_void_p(send), ctypes.c_void_p(recv))
                return int(call(*pointers, ctypes.c_size_t(count), dtype, root, self.comm, None))
            case "send" | "recv":  # to and from rank `root`
                move, at = (lib.ncclSend, send) if name == "send" else (lib.ncclRecv, recv)
                return int(move(ctypes.c_void_p(at), ctypes.c_size_t(count), dtype, root, self.comm, None))
            case _:
                return self.nccl.call(Collective(name), send, recv, count, dtype, order.get("op", 0), root, self.comm)

    def answer(self, result: int) -> dict[str, Any]:
        return {"result": result, "text": self.nccl.lib.ncclGetLastError(None).decode() if result else ""}


def config_of(order: dict[str, Any]) -> ctypes.Array[ctypes.c_char] | None:
    return ctypes.create_string_buffer(256) if order.get("config") == "bad" else None


def fork_after(seconds: float) -> None:
    time.sleep(seconds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the other threads
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)


HELD: list[int] = []


def exhaust(limit: int) -> int:
    """Opens all descriptors that this process may have; 0: gives them back."""
    for one in HELD:
        os.close(one)
    HELD.clear()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit or 256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.suppress(OSError):
        while limit:
            HELD.append(os.open("/dev/null", os.O_RDONLY))
    return len(HELD)


def serve(rank: RankProcess) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "call" and "aborts" in order:
            threading.Timer(order["aborts"], rank.do, ({"do": "abort"},)).start()
        print(json.dumps(rank.do(order)), flush=True)


if __name__ == "__main__":
    serve(RankProcess(Path(sys.argv[1])))
