"""Scenarios of the rules of the mock driver (see mock_scenarios.py): virtual memory."""

from __future__ import annotations

import ctypes
import os

from mock_job import Buffer, Job

PAGE = 2 << 20


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", ctypes.c_int * 2),
        ("for_windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class DriverRules(Job):
    def create(self, size: int, handle_types: int = 1) -> tuple[int, ctypes.c_ulonglong]:
        """The driver's status of cuMemCreate on GPU 0, and the handle."""
        wanted, handle = Properties(1, handle_types, (ctypes.c_int * 2)(1, 0)), ctypes.c_ulonglong()
        status = self.mock.cuMemCreate(
            ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(wanted), ctypes.c_ulonglong()
        )
        return int(status), handle

    def virtual_memory(self, handle: ctypes.c_ulonglong) -> ctypes.c_ulonglong:
        """A page of memory at an address that GPU 0 may touch."""
        at, none, size = ctypes.c_ulonglong(), ctypes.c_ulonglong(), ctypes.c_size_t(PAGE)
        self.cuda(self.mock.cuMemAddressReserve(ctypes.byref(at), size, ctypes.c_size_t(), none, none))
        self.cuda(self.mock.cuMemMap(at, size, ctypes.c_size_t(), handle, none))
        self.cuda(self.access(at))
        return at

    def access(self, at: ctypes.c_ulonglong, device: int = 0) -> int:
        wanted = (ctypes.c_int * 3)(1, device, 3)
        return int(self.mock.cuMemSetAccess(at, ctypes.c_size_t(PAGE), ctypes.byref(wanted), ctypes.c_size_t(1)))

    def export(self, handle: ctypes.c_ulonglong) -> tuple[int, int]:
        file = ctypes.c_int(-1)
        return int(
            self.mock.cuMemExportToShareableHandle(ctypes.byref(file), handle, 1, ctypes.c_ulonglong())
        ), file.value

    def what_is_refused(self) -> dict[str, int]:
        """The driver's status of each call that it must refuse."""
        status, handle = self.create(PAGE)
        self.cuda(status)
        at = self.virtual_memory(handle)
        own_alone = self.create(PAGE, 0)[1]
        room, whole = ctypes.create_string_buffer(64), ctypes.c_size_t(PAGE)
        other, none = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        file = os.memfd_create("nothing")
        return {
            "half a page": self.create(PAGE // 2)[0],
            "an address for half a page": int(
                self.mock.cuMemAddressReserve(ctypes.byref(other), ctypes.c_size_t(PAGE // 2), none, none, none)
            ),
            "a descriptor that nobody asked for": self.export(own_alone)[0],
            "an IPC handle": int(self.mock.cuIpcGetMemHandle(room, at)),
            "a file without memory": int(
                self.mock.cuMemImportFromShareableHandle(ctypes.byref(other), ctypes.c_void_p(file), 1)
            ),
            "freed while it is mapped": int(self.mock.cuMemAddressFree(at, whole)),
            "mapped twice": int(self.mock.cuMemMap(at, whole, none, handle, none)),
            "half unmapped": int(self.mock.cuMemUnmap(at, ctypes.c_size_t(PAGE // 2))),
        }

    def imported_after_the_end(self) -> bool:
        """Memory behind a descriptor stays after its creators have unmapped and released it."""
        handle = self.create(PAGE)[1]
        at = self.virtual_memory(handle)
        ctypes.memmove(at.value or 0, b"word", 4)
        file = self.export(handle)[1]
        self.cuda(self.mock.cuMemUnmap(at, ctypes.c_size_t(PAGE)))
        self.cuda(self.mock.cuMemRelease(handle))
        again = ctypes.c_ulonglong()
        self.cuda(self.mock.cuMemImportFromShareableHandle(ctypes.byref(again), ctypes.c_void_p(file), 1))
        os.close(file)
        return ctypes.string_at(self.virtual_memory(again).value or 0, 4) == b"word"

    def unmapped_under_a_kernel(self) -> int:
        """The driver's status of a kernel whose buffer is unmapped while it waits."""
        comm, stream = self.comm(), self.stream()
        mine, room = self.buffer(self.data(self.rank, 100)), self.room(100)
        if self.rank != 0:
            self.hear("unmapped")
            self.check(self.all_reduce(mine, room, comm, stream))
            return 0
        at = self.virtual_memory(self.create(PAGE)[1])
        result = Buffer.__new__(Buffer)
        result.at, result.like = at.value or 0, room.like
        self.check(self.all_reduce(mine, result, comm, stream))
        self.cuda(self.mock.cuMemUnmap(at, ctypes.c_size_t(PAGE)))
        self.say("unmapped")
        return int(self.mock.cuStreamSynchronize(stream))

    def events_of_graphs(self) -> dict[str, int]:
        """Returns the driver's status for wrong uses of events that cross the border of a graph."""
        self.cuda(self.mock.cuInit(0))
        stream, other, graph, event = self.stream(), self.stream(), ctypes.c_void_p(), ctypes.c_void_p()
        self.cuda(self.mock.cuEventCreate(ctypes.byref(event), 2))
        said = {"recorded for a graph outside of one": int(self.mock.cuEventRecordWithFlags(event, stream, 1))}
        said["waited for like a graph outside of one"] = int(self.mock.cuStreamWaitEvent(stream, event, 1))
        self.cuda(self.mock.cuStreamBeginCapture_v2(stream, 0))
        said["waited for, but never recorded"] = int(self.mock.cuStreamWaitEvent(stream, event, 1))
        self.cuda(self.mock.cuEventRecord(event, other))
        said["of no graph, waited for in one"] = int(self.mock.cuStreamWaitEvent(stream, event, 0))
        said["the end of that capture"] = int(self.mock.cuStreamEndCapture(stream, ctypes.byref(graph)))
        self.cuda(self.mock.cuStreamBeginCapture_v2(stream, 0))
        said["asked for amid a capture"] = int(self.mock.cuEventQuery(event))
        said["the end of the other capture"] = int(self.mock.cuStreamEndCapture(stream, ctypes.byref(graph)))
        number = ctypes.c_uint64()
        self.cuda(self.mock.cuStreamBeginCapture_v2(stream, 2))
        said["the number of a captured stream"] = int(self.mock.cuStreamGetId(stream, ctypes.byref(number)))
        said["the end of the third capture"] = int(self.mock.cuStreamEndCapture(stream, ctypes.byref(graph)))
        return said
