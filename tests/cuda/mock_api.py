"""Functions of the API beside those that jobs call all the time, by one rank of a job (mock_scenarios.py)."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mock_job import FLOAT, Array, Comm, Job

from collc.bench.nccl import UniqueId

COUNT = 33
SUM, ROOT = 0, 1
# Where the communicator stands among the arguments, if it is not the first one.
COMM_AT = {"ncclPutSignal": 9, "ncclSignal": 4, "ncclWaitSignal": 2}


class Team(ctypes.Structure):
    _fields_ = [("nranks", ctypes.c_int), ("rank", ctypes.c_int), ("stride", ctypes.c_int)]


class ApiCalls(Job):
    def chosen_in_the_runtime(self) -> list[int]:
        """A program that has only called cudaSetDevice, before CUDA 12: its device, and the number of wrong sums."""
        runtime = ctypes.CDLL(self.given["runtime"], mode=ctypes.RTLD_GLOBAL)
        self.cuda(runtime.cudaSetDevice(self.rank))
        self.cuda(self.mock.cuCtxSetCurrent(None))
        comm, device = self.comm(), ctypes.c_int(-1)
        self.check(self.lib.ncclCommCuDevice(comm, ctypes.byref(device)))
        self.use(self.rank)
        send, recv, stream = self.buffer(self.data(self.rank, COUNT)), self.room(COUNT), self.stream()
        self.check(self.all_reduce(send, recv, comm, stream))
        self.wait(stream)
        expected = sum(self.data(rank, COUNT) for rank in range(self.nranks))
        return [device.value, int((recv.get() != expected).sum())]

    def collectives_with_config(self) -> list[str]:
        """Returns the functions with a configuration whose results differ from the results without one."""
        comm, stream, lib = self.comm(), self.stream(), self.lib
        n, config = ctypes.c_size_t(COUNT), ctypes.create_string_buffer(256)
        ends = (comm, stream)
        ways: list[tuple[Any, Any, list[int]]] = [
            (lib.ncclAllReduce, lib.ncclAllReduceConfig, [FLOAT, SUM]),
            (lib.ncclBroadcast, lib.ncclBroadcastConfig, [FLOAT, ROOT]),
            (lib.ncclReduce, lib.ncclReduceConfig, [FLOAT, SUM, ROOT]),
            (lib.ncclAllGather, lib.ncclAllGatherConfig, [FLOAT]),
            (lib.ncclReduceScatter, lib.ncclReduceScatterConfig, [FLOAT, SUM]),
            (lib.ncclAlltoAll, lib.ncclAlltoAllConfig, [FLOAT]),
            (lib.ncclGather, lib.ncclGatherConfig, [FLOAT, ROOT]),
            (lib.ncclScatter, lib.ncclScatterConfig, [FLOAT, ROOT]),
        ]
        wrong = []
        for plain, with_config, middle in ways:
            send = self.buffer(self.data(self.rank, COUNT * self.nranks))
            results = []
            for function, last in ((plain, ()), (with_config, (config,))):
                recv = self.room(COUNT * self.nranks)
                where = (ctypes.c_void_p(send.at), ctypes.c_void_p(recv.at), n)
                self.check(function(*where, *middle, *ends, *last))
                self.wait(stream)
                results.append(recv.get())
            untouched = bool((results[0] == -1).all())
            if not np.array_equal(results[0], results[1]) or untouched != self.has_no_result(plain.__name__):
                wrong.append(with_config.__name__)
        buffer = self.buffer(self.data(self.rank, COUNT))
        self.check(lib.ncclBcast(ctypes.c_void_p(buffer.at), n, FLOAT, ROOT, *ends))
        self.wait(stream)
        if not np.array_equal(buffer.get(), self.data(ROOT, COUNT)):
            wrong.append("ncclBcast")
        return wrong

    def has_no_result(self, name: str) -> bool:
        return name in ("ncclReduce", "ncclGather") and self.rank != ROOT

    def queries(self) -> dict[str, Any]:
        comm, lib, found = self.comm(), self.lib, ctypes.c_int(-1)
        said: dict[str, Any] = {}
        asked: list[Callable[..., int]] = [lib.ncclCommCount, lib.ncclCommUserRank, lib.ncclCommCuDevice]
        for function in asked:
            self.check(function(comm, ctypes.byref(found)))
            said[function.__name__] = found.value
        self.check(lib.ncclGetVersion(ctypes.byref(found)))
        lib.ncclGetErrorString.restype = ctypes.c_char_p
        said |= {"ncclGetVersion": found.value, "ncclGetErrorString": lib.ncclGetErrorString(5).decode()}
        teams = (lib.ncclTeamWorld, lib.ncclTeamLsa, lib.ncclTeamRail, lib.ncclTeamCft, lib.ncclTeamCftMultimem)
        for team in teams:
            team.restype = Team
            made = team(comm, 0)  # ncclTeamCft has a mode
            said[team.__name__] = [made.nranks, made.rank]
        world = lib.ncclTeamWorld(comm)
        said["ncclTeamRankToWorld"] = lib.ncclTeamRankToWorld(comm, world, 2)
        said["ncclTeamRankToLsa"] = [lib.ncclTeamRankToLsa(comm, world, rank) for rank in range(self.nranks)]
        buffer, handle = self.buffer(self.data(0, COUNT)), ctypes.c_void_p()
        size = ctypes.c_size_t(4 * COUNT)
        self.check(lib.ncclCommRegister(comm, ctypes.c_void_p(buffer.at), size, ctypes.byref(handle)))
        self.check(lib.ncclCommDeregister(comm, handle))
        self.check(lib.ncclMemFree(ctypes.c_void_p(buffer.at)))
        self.check(lib.ncclCommFinalize(comm))
        self.check(lib.ncclCommDestroy(comm))
        return said

    def created(self) -> dict[str, bool]:
        """Communicators made in the less usual ways: whether they sum as they should."""
        said: dict[str, bool] = {}
        if self.rank == 0:
            self.say("id-scalable", self.nccl.unique_id())
        unique, made = UniqueId.from_buffer_copy(self.hear("id-scalable")), Comm()
        self.check(
            self.lib.ncclCommInitRankScalable(ctypes.byref(made), self.nranks, self.rank, 1, ctypes.byref(unique), None)
        )
        said["ncclCommInitRankScalable"] = self.sums_are_right(made, stream=self.stream())
        parts = Comm()
        self.check(self.lib.ncclCommSplit(made, 0, self.rank, ctypes.byref(parts), None))
        said["ncclCommSplit"] = self.sums_are_right(parts, stream=self.stream())
        said["ncclCommGrow"] = self.sums_are_right(self.grown(), stream=self.stream())
        return said

    def grown(self) -> Comm:
        """Returns a communicator of rank 0 that the other ranks join. The library has plans for 1 rank and for all."""
        small, made, unique = Comm(), Comm(), UniqueId()
        if self.rank == 0:
            small = self.comm("small", [0])
            self.check(self.lib.ncclCommGetUniqueId(small, ctypes.byref(unique)))
            self.say("id-grown", bytes(unique))
        else:
            unique = UniqueId.from_buffer_copy(self.hear("id-grown"))
        old, rank = (small, -1) if self.rank == 0 else (None, self.rank)
        self.check(self.lib.ncclCommGrow(old, self.nranks, ctypes.byref(unique), rank, ctypes.byref(made), None))
        if self.rank == 0:
            self.check(self.lib.ncclCommDestroy(small))
        return made

    def suspended(self) -> dict[str, Any]:
        comm, stream, figure = self.comm(), self.stream(), ctypes.c_uint64()

        def stat(which: int) -> int:
            self.check(self.lib.ncclCommMemStats(comm, which, ctypes.byref(figure)))
            return figure.value

        said: dict[str, Any] = {"active": [stat(1), self.sums(comm, stream)], "gpu bytes": stat(3)}
        said["memory that can be suspended"] = stat(0)
        self.check(self.lib.ncclCommSuspend(comm, 1))
        room = self.room(4)
        code = self.all_reduce(room, room, comm, stream)
        said["suspended"] = [stat(1), code, self.text().removeprefix("ncclAllReduce: ")]
        self.check(self.lib.ncclCommResume(comm))
        said["resumed"] = [stat(1), self.sums(comm, stream)]
        return said

    def windows(self) -> dict[str, Any]:
        comm, stream, lib = self.comm(), self.stream(), self.lib
        buffer, window, at = self.buffer(self.data(0, COUNT)), ctypes.c_void_p(1), ctypes.c_void_p(1)
        size = ctypes.c_size_t(4 * COUNT)
        code = lib.ncclCommWindowRegister(comm, ctypes.c_void_p(buffer.at), size, ctypes.byref(window), 1)
        said: dict[str, Any] = {"registered": [code, window.value]}
        said["pointer"] = [lib.ncclWinGetUserPtr(comm, window, ctypes.byref(at)), at.value]
        said["deregistered"] = lib.ncclCommWindowDeregister(comm, window)
        said["nothing"] = lib.ncclCommWindowRegister(comm, None, size, ctypes.byref(window), 1)
        return {**said, "works": self.sums(comm, stream)}

    def revoked(self) -> dict[str, Any]:
        comm, stream, lib, room = self.comm(), self.stream(), self.lib, self.room(COUNT)
        self.check(0 if self.sums(comm, stream) else 1)
        self.meet("made")
        said: dict[str, Any] = {}
        if self.rank == 0:
            self.check(self.all_reduce(self.buffer(self.data(0, COUNT)), room, comm, stream))
        else:
            self.hear("revoked")
            self.until(lambda: self.error(comm) != 0)
            code = self.error(comm)
            self.all_reduce(room, room, comm, stream)
            said["heard"] = [code, "rank 0: ncclCommRevoke was called" in self.text()]
        start = time.monotonic()
        self.check(lib.ncclCommRevoke(comm, 0))
        said["seconds"] = time.monotonic() - start
        if self.rank == 0:
            self.say("revoked")
        said |= {"state": self.error(comm), "call": self.all_reduce(room, room, comm, stream)}
        said |= {"finalize": lib.ncclCommFinalize(comm), "again": lib.ncclCommRevoke(comm, 0)}
        self.wait(stream)
        part, turned = Comm(), Comm()
        self.check(lib.ncclCommSplit(comm, 0, self.rank, ctypes.byref(part), None))
        said["split works"] = self.sums(part, stream)
        self.check(lib.ncclCommSplit(part, 0, -self.rank, ctypes.byref(turned), None))
        said["and split again"] = self.sums(turned, stream)
        self.check(lib.ncclCommDestroy(comm))
        return said

    def refused_functions(self) -> dict[str, Any]:
        """Of each function that is refused: whether it says why, and whether the communicator goes on."""
        comm, stream = self.comm(), self.stream()
        said: dict[str, Any] = {}
        for name in self.given["names"]:
            arguments = [ctypes.c_void_p(0)] * 11
            if not name.startswith("ncclGet"):  # those take a window, and ours are NULL
                arguments[COMM_AT.get(name, 0)] = comm
            if name == "ncclCommGrow":
                place = Comm()
                arguments[4] = ctypes.cast(ctypes.byref(place), ctypes.c_void_p)
            if name == "ncclGroupSimulateEnd":
                self.check(self.lib.ncclGroupStart())
                arguments = [ctypes.c_void_p(0)]
            code = int(getattr(self.lib, name)(*arguments))
            text = self.text()
            self.meet(name)
            said[name] = [code, "not supported" in text, self.error(comm) == 0 and self.sums(comm, stream)]
        return said

    def sums(self, comm: Comm, stream: ctypes.c_void_p) -> bool:
        return self.sums_are_right(comm, COUNT, stream)

    def factors(self) -> dict[str, bool]:
        """Sums with a factor of each rank, given by value and in the GPU's memory, and of 8-bit floats."""
        comm, stream, lib, size = self.comm(), self.stream(), self.lib, ctypes.c_size_t(COUNT)
        wanted = sum(self.data(rank, COUNT) * np.float32(0.5 + rank) for rank in range(self.nranks))
        mine = np.full(1, 0.5 + self.rank, dtype=np.float32)
        in_memory = self.buffer(mine)
        said: dict[str, bool] = {}
        for name, at, residence in (("by value", mine.ctypes.data, 1), ("in memory", in_memory.at, 0)):
            op, send, recv = ctypes.c_int(), self.buffer(self.data(self.rank, COUNT)), self.room(COUNT)
            self.check(lib.ncclRedOpCreatePreMulSum(ctypes.byref(op), ctypes.c_void_p(at), FLOAT, residence, comm))
            where = (ctypes.c_void_p(send.at), ctypes.c_void_p(recv.at), size)
            self.check(lib.ncclAllReduce(*where, FLOAT, op, comm, stream))
            self.check(lib.ncclRedOpDestroy(op, comm))
            self.wait(stream)
            said[name] = np.array_equal(recv.get(), wanted)
        # Ones are 0x38 and 0x3c, threes 0x44 and 0x42.
        for name, number, one, three in (("e4m3", 10, 0x38, 0x44), ("e5m2", 11, 0x3C, 0x42)):
            ones = self.buffer(np.full(COUNT, one, dtype=np.uint8))
            self.check(lib.ncclAllReduce(*(ctypes.c_void_p(ones.at),) * 2, size, number, SUM, comm, stream))
            self.wait(stream)
            said[name] = bool((ones.get() == three).all())
        said |= self.factors_alone(mine, in_memory.at)
        return said

    def factors_alone(self, factor: Array, in_memory: int) -> dict[str, bool]:
        """The same sums in a communicator of one rank, in place and not, whose count no chunk divides."""
        lib, stream, count = self.lib, self.stream(), 8209
        alone, said, data = self.comm(f"alone-{self.rank}", [self.rank]), {}, self.data(self.rank, count)
        for name, at, residence in (("alone by value", factor.ctypes.data, 1), ("alone in memory", in_memory, 0)):
            op, sent, right = ctypes.c_int(), self.buffer(data), True
            self.check(lib.ncclRedOpCreatePreMulSum(ctypes.byref(op), ctypes.c_void_p(at), FLOAT, residence, alone))
            for call, root in ((lib.ncclAllReduce, ()), (lib.ncclReduce, (0,)), (lib.ncclReduceScatter, ())):
                for room in (self.room(count), self.buffer(data)):
                    source = sent.at if room.like[0] < 0 else room.at
                    where = (ctypes.c_void_p(source), ctypes.c_void_p(room.at), ctypes.c_size_t(count))
                    self.check(call(*where, FLOAT, op, *root, alone, stream))
                    self.wait(stream)
                    right &= bool(np.array_equal(room.get(), data * factor))
            said[name] = right
        self.check(lib.ncclCommDestroy(alone))
        return said
