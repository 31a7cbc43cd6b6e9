"""Runs all ranks of a benchmark on GPUs, in one process. Reads orders as JSON objects, and answers with JSON objects.

`collc.bench.team` runs it as ``python -m collc.bench.gpus LIBRARY``. Ranks are assigned to the GPUs in turn. More ranks
than GPUs need COLLC_SHARE_GPU=1. An answer has one object per rank, in the form of the answers of `collc.bench.worker`.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from collc.bench.breakdown import read_times, since
from collc.bench.data import OPS, TYPES, Case
from collc.bench.nccl import Nccl
from collc.bench.pairs import read_pairs
from collc.bench.worker import (
    FAILURES,
    GUARD,
    UNWRITTEN,
    Buffer,
    answer_line,
    count_wrong,
    failed,
    make_buffers,
    what_runs,
)
from collc.checker.library import read_manifest
from collc.collectives.model import Collective
from collc.errors import RunError

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_NO_MEMORY = "no memory on the GPU: choose a smaller -e"
# The hint for a machine without GPUs.
_ELSEWHERE = (
    "`collc simulate TOPO` predicts its times anywhere; `collc compile TOPO --target host` makes a library for CPUs"
)


class Driver:
    """The CUDA driver and the contexts of the GPUs, for the calls of the benchmark itself.

    Raises:
        RunError: there is no driver or no GPU, or a call failed.
    """

    def __init__(self) -> None:
        try:
            self.lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise RunError(f"no NVIDIA driver here: {error}", hint=_ELSEWHERE) from None
        self("cuInit", 0)
        count = ctypes.c_int()
        self("cuDeviceGetCount", ctypes.byref(count))
        if count.value == 0:
            raise RunError("the NVIDIA driver shows no GPU", hint=_ELSEWHERE)
        self.contexts = []
        for device in range(count.value):
            context = ctypes.c_void_p()
            self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.contexts.append(context)

    def __call__(self, name: str, *arguments: object) -> None:
        status = getattr(self.lib, name)(*arguments)
        if status:
            hint = _NO_MEMORY if status == _OUT_OF_MEMORY else None
            raise RunError(f"{name} failed with CUDA error {status}", hint=hint)

    def use(self, device: int) -> None:
        self("cuCtxSetCurrent", self.contexts[device])

    def synchronize(self) -> None:
        for device in range(len(self.contexts)):
            self.use(device)
            self("cuCtxSynchronize")


class GpuBuffer(Buffer):
    """Bytes between two guards on a GPU, with a copy on the host.

    Args:
        lender: the library whose ncclMemAlloc allocates the memory; None for the driver's allocation.
    """

    def __init__(self, driver: Driver, device: int, size: int, lender: Nccl | None = None) -> None:
        super().__init__(size)
        self.driver, self.device, self.lender = driver, device, lender
        driver.use(device)
        if lender is None:
            at = ctypes.c_uint64()
            driver("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(self.all.nbytes))
            self.start = at.value
        else:
            self.start = lender.allocate(self.all.nbytes, _NO_MEMORY)
        self.address = self.start + GUARD
        self.upload()

    def upload(self) -> None:
        self.driver.use(self.device)
        host, size = ctypes.c_void_p(self.all.ctypes.data), ctypes.c_size_t(self.all.nbytes)
        self.driver("cuMemcpyHtoD_v2", ctypes.c_uint64(self.start), host, size)

    def download(self) -> None:
        self.driver.use(self.device)
        host, size = ctypes.c_void_p(self.all.ctypes.data), ctypes.c_size_t(self.all.nbytes)
        self.driver("cuMemcpyDtoH_v2", host, ctypes.c_uint64(self.start), size)

    def release(self) -> None:
        self.driver.use(self.device)
        if self.lender is None:
            self.driver("cuMemFree_v2", ctypes.c_uint64(self.start))
        else:
            self.lender.release(self.start)


Place = tuple[GpuBuffer, GpuBuffer, int, int]  # of a rank: its send and receive buffers, and the offsets of the data


class Ranks:
    """The state of all ranks."""

    def __init__(self, library: Path) -> None:
        self.nccl = Nccl(library)
        self.driver = Driver()
        # Kernels of such a library read data in its own buffers in place, so the benchmark uses these buffers.
        self.lender = self.nccl if read_manifest(library).get("direct") else None
        self.devices: list[int] = []
        self.comms: list[ctypes.c_void_p] = []

    def init(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        nranks = order["nranks"]
        self.devices = [rank % len(self.driver.contexts) for rank in range(nranks)]
        made = (ctypes.c_void_p * nranks)()
        status = self.nccl.lib.ncclCommInitAll(made, nranks, (ctypes.c_int * nranks)(*self.devices))
        self.nccl.check(status, "ncclCommInitAll")
        self.comms = [ctypes.c_void_p(comm) for comm in made]
        return [{} for _ in self.comms]

    def case(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """Runs, times and checks one case, after a warmup."""
        case = Case(
            Collective(order["collective"]),
            len(self.comms),
            order["root"],
            order["count"],
            TYPES[order["type"]],
            order["op"],
        )
        places = [
            make_buffers(case, rank, order["in_place"], partial(GpuBuffer, self.driver, device, lender=self.lender))
            for rank, device in enumerate(self.devices)
        ]
        buffers = list({id(buffer): buffer for place in places for buffer in place[:2]}.values())
        try:
            return self._measure(order, case, places, buffers)
        finally:
            for buffer in buffers:
                buffer.release()

    def _measure(
        self,
        order: dict[str, Any],
        case: Case,
        places: list[Place],
        buffers: list[GpuBuffer],
    ) -> list[dict[str, Any]]:
        for rank, (send, _, send_at, _) in enumerate(places):
            send.put(case.send_data(rank), send_at)
        for buffer in buffers:
            buffer.upload()
        self.call(order["warmup"], case, places)
        before = [read_times(self.nccl.lib, comm) for comm in self.comms]
        start = time.perf_counter()
        self.call(order["iters"], case, places)
        seconds = (time.perf_counter() - start) / max(1, order["iters"])
        after = [read_times(self.nccl.lib, comm) for comm in self.comms]
        wrong: list[int | None] = [0 if order["check"] else None for _ in self.comms]
        for _ in range(order["check"]):
            for rank, (send, recv, send_at, _) in enumerate(places):
                recv.data[:] = UNWRITTEN
                send.put(case.send_data(rank), send_at)
            for buffer in buffers:
                buffer.upload()
            self.call(1, case, places)
            for buffer in buffers:
                buffer.download()
            for rank, (send, recv, _, recv_at) in enumerate(places):
                wrong[rank] = (wrong[rank] or 0) + count_wrong(case, rank, send, recv, recv_at)
        runs = what_runs(self.nccl, self.comms[0], case)
        return [
            {"seconds": seconds, "wrong": wrong[rank], "times": since(before[rank], after[rank]), **runs}
            for rank in range(len(self.comms))
        ]

    def call(self, times: int, case: Case, places: list[Place]) -> None:
        """Runs the collective `times` times on all ranks and waits for the end."""
        lib, op = self.nccl.lib, OPS[case.op] if case.op else 0
        for _ in range(times):
            self.nccl.check(lib.ncclGroupStart(), "ncclGroupStart")
            for comm, (send, recv, send_at, recv_at) in zip(self.comms, places, strict=True):
                start, end = send.address + send_at, recv.address + recv_at
                code = self.nccl.call(case.collective, start, end, case.count, case.kind.number, op, case.root, comm)
                self.nccl.check(code, case.collective.value)
            self.nccl.check(lib.ncclGroupEnd(), "ncclGroupEnd")
        self.driver.synchronize()

    def close(self) -> list[dict[str, Any]]:
        for comm in self.comms:
            self.nccl.check(self.nccl.lib.ncclCommDestroy(comm), "ncclCommDestroy")
        answers: list[dict[str, Any]] = [{} for _ in self.comms]
        self.comms = []
        return answers

    def obey(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        match order["do"]:
            case "init":
                return self.init(order)
            case "case":
                return self.case(order)
            case "checked":
                return [{"pairs": read_pairs(self.nccl.lib, comm)} for comm in self.comms]
            case _:
                return self.close()


def serve(
    library: Path, orders: Any, answer: Callable[[dict[str, Any]], None], make: Callable[[Path], Ranks] = Ranks
) -> None:
    """Executes the orders and answers each."""
    ranks: Ranks | None = None
    for order in orders:
        try:
            if ranks is None:
                ranks = make(library)
            done: dict[str, Any] = {"ranks": ranks.obey(order)}
        except FAILURES as error:
            done = dict(failed(error))
        answer(done)


def main() -> None:
    """Executes the orders from standard input until it ends."""
    serve(Path(sys.argv[1]), map(json.loads, sys.stdin), answer_line)


if __name__ == "__main__":
    main()
