"""Run by test_cuda_chaos.py: one rank in a process of its own on the mock driver, which the test orders about.

Orders and answers are the same as in tests/runtime/rank_process.py.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

from rank_process import RankProcess, serve

from collc.collectives.model import Collective


class MockRank(RankProcess):
    def __init__(self, library: Path) -> None:
        super().__init__(library)
        self.mock = ctypes.CDLL("libcuda.so.1")

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "init":
            context = ctypes.c_void_p()
            self.mock.cuInit(0)
            self.mock.cuDevicePrimaryCtxRetain(ctypes.byref(context), order["rank"] % int(os.environ["MOCK_GPUS"]))
            self.mock.cuCtxSetCurrent(context)
        if order["do"] == "kernels":
            return {name: int(self.mock.mock_calls(name.encode())) for name in ("Simple", "LL", "LL128")}
        return super().do(order)

    def call(self, order: dict[str, Any]) -> dict[str, Any]:
        """Makes one call, waits for its end, and returns the communicator's status."""
        count, start = order.get("count", 100), time.monotonic()
        at = ctypes.c_void_p()
        self.nccl.check(
            self.nccl.lib.ncclMemAlloc(ctypes.byref(at), ctypes.c_size_t(64 * max(count, 1))), "ncclMemAlloc"
        )
        assert at.value
        buffers = (at.value, at.value + 4 * count * 8)
        name = Collective(order.get("collective", "all_reduce"))
        result = self.nccl.call(
            name, *buffers, count, order.get("type", 7), order.get("op", 0), order.get("root", 0), self.comm
        )
        if result == 0:
            self.mock.cuCtxSynchronize()
            state = ctypes.c_int(0)
            while state.value == 0 and time.monotonic() - start < order.get("seconds", 20):
                self.nccl.lib.ncclCommGetAsyncError(self.comm, ctypes.byref(state))
                time.sleep(0.01)
            # A call on a broken communicator says why it is broken.
            result = self.nccl.call(
                name, *buffers, count, order.get("type", 7), order.get("op", 0), order.get("root", 0), self.comm
            )
        return {**self.answer(result), "seconds": time.monotonic() - start}


if __name__ == "__main__":
    os.environ.setdefault("MOCK_GPUS", "3")
    serve(MockRank(Path(sys.argv[1])))
