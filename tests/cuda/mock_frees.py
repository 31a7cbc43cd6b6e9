"""Scenarios of memory that others still use when a communicator ends (see mock_scenarios.py)."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
from mock_job import Buffer, Comm, Job

COUNT = 4000
NEW_BUFFERS, NEW_COUNT = 64, 1 << 14  # 4 MiB: more than the arena of a rank of the tests' library


class Frees(Job):
    """Rank 1 ends a communicator early. The other ranks have calls of it that have not run yet."""

    def end_as_asked(self, comm: Comm) -> None:
        """Ends a communicator in the way that the test asks for."""
        if self.given["end"] == "revoke":
            self.check(self.lib.ncclCommRevoke(comm, 0))
        self.check((self.lib.ncclCommAbort if self.given["end"] == "abort" else self.lib.ncclCommDestroy)(comm))

    def new_buffers(self) -> list[Buffer]:
        """Buffers that take the places of whatever has been freed."""
        content = np.full(NEW_COUNT, -1, dtype=np.float32)
        return [self.buffer(content) for _ in range(NEW_BUFFERS)]

    def overwritten(self, buffers: list[Buffer]) -> int:
        """Floats of the new buffers that somebody else has changed."""
        return sum(int((buffer.get() != -1).sum()) for buffer in buffers)

    def calls_behind_others(self) -> int:
        """Rank 1 ends a communicator while its calls stand behind other work on two ranks.

        Returns the number of floats of rank 1's new memory that the calls of the others overwrite.
        """
        first, second, stream = self.comm("first"), self.comm("second"), self.stream()
        assert self.sums_are_right(second, stream=stream)
        self.meet("used")
        if self.rank != 1:
            self.waiting_kernel(first, stream)  # type: ignore[attr-defined]
            self.check(self.all_reduce(self.buffer(self.data(self.rank, COUNT)), self.room(COUNT), second, stream))
            self.say(f"queued-{self.rank}")
            self.wait(stream)
            self.say(f"run-{self.rank}")
            return 0
        for rank in (0, 2):
            self.hear(f"queued-{rank}")
        self.end_as_asked(second)
        buffers = self.new_buffers()
        self.waiting_kernel(first, stream)  # type: ignore[attr-defined]
        self.wait(stream)
        for rank in (0, 2):
            self.hear(f"run-{rank}")
        return self.overwritten(buffers)

    def graph_after_the_end(self) -> int:
        """Two ranks replay a graph after rank 1, or every rank, has ended the communicator.

        Returns the number of floats of this rank's new memory that are overwritten, or a negative
        status of a replay.
        """
        comm, stream = self.comm(), self.stream()
        assert self.sums_are_right(comm, stream=stream)
        before = int(self.mock.mock_pieces()) - Buffer.made
        send, recv = self.buffer(self.data(self.rank, COUNT)), self.room(COUNT)
        graph = self.captured(stream, lambda: self.check(self.all_reduce(send, recv, comm, stream)))
        self.meet("captured")
        if self.rank == 1 or self.given["all"]:
            self.end_as_asked(comm)
        self.meet("ended")
        buffers = self.new_buffers()
        # The library frees what it can in this time: no event tells that memory has stayed.
        time.sleep(self.given["seconds"])
        self.meet("freed")
        status = 0
        if self.rank != 1:
            status = int(self.mock.cuGraphLaunch(graph, stream)) or int(self.mock.cuStreamSynchronize(stream))
        self.meet("replayed")
        changed = self.overwritten(buffers)
        self.destroy_graph(graph)
        if self.given["all"]:
            self.until(lambda: int(self.mock.mock_pieces()) - Buffer.made < before)
        return -status or changed

    def destroy_graph(self, graph: ctypes.c_void_p) -> None:
        self.cuda(self.mock.cuGraphExecDestroy(graph))

    def end_of_an_importer(self) -> list[object]:
        """Rank 1 aborts; the others keep the communicator until rank 1 has counted its memory.

        Returns the seconds that the abort took, and the pieces of memory that stayed.
        """
        before = self.pieces()
        comm, stream = self.comm(), self.stream()
        assert self.sums_are_right(comm, stream=stream)
        self.meet("used")
        if self.rank != 1:
            self.hear("looked")
            if not self.given.get("keep"):
                self.end_as_asked(comm)
            self.meet("done")
            return []
        start = time.monotonic()
        self.end_as_asked(comm)
        seconds = time.monotonic() - start
        time.sleep(self.given.get("seconds", 0.3))
        kept = self.pieces() - before
        self.say("looked")
        if not self.given.get("keep"):
            self.until(lambda: self.pieces() == before)
        self.meet("done")
        return [seconds, kept]

    def end_with_refused_closes(self) -> int:
        """All ranks end a communicator, and the driver refuses to close the handles of rank 0.

        Returns the number of pieces of memory that stay.
        """
        before = self.pieces()
        comm = self.comm()
        assert self.sums_are_right(comm, stream=self.stream())
        self.destroy(comm)
        self.meet("ended")
        time.sleep(0.3)  # no event tells that memory has stayed
        self.meet("looked")
        return self.pieces() - before

    def after_a_reset(self) -> bool:
        """Returns True if a communicator works that is made after cudaDeviceReset."""
        right = True
        for name in ("first", "second"):
            comm = self.comm(name)
            right &= self.sums_are_right(comm, stream=self.stream())
            self.destroy(comm)
            self.meet(f"ended-{name}")
            self.reset_gpu()
        return right

    def reset_of_a_rank(self) -> list[Any]:
        """Rank 1 resets its GPU under two communicators, which all ranks end; then all make a third one.

        Returns the errors of the two, what a call of each returns, the text of the last call, and if the third works.
        """
        old = [self.comm("first"), self.comm("second")]
        stream = self.stream()
        for comm in old:
            assert self.sums_are_right(comm, stream=stream)
        self.meet("used")
        if self.rank == 1:
            self.reset_gpu()
        self.until(lambda: all(self.error(comm) != 0 for comm in old))
        errors = [self.error(comm) for comm in old]
        stream, room = self.stream(), self.room(10)
        codes = [self.all_reduce(room, room, comm, stream) for comm in old]
        text = self.text()
        self.destroy(old[0])
        self.comms.remove(old[1])
        self.check(self.lib.ncclCommAbort(old[1]))
        self.meet("ended")
        return [errors, codes, text, self.sums_are_right(self.comm("third"), stream=stream)]

    def frees_after_a_reset(self) -> int:
        """A graph keeps memory of an aborted communicator until the GPU has been reset.

        Returns how many of the buffers with its addresses are freed with the graph.
        """
        comm, stream = self.comm(), self.stream()
        send, recv = self.buffer(self.data(self.rank, COUNT)), self.room(COUNT)
        graph = self.captured(stream, lambda: self.check(self.all_reduce(send, recv, comm, stream)))
        self.meet("captured")
        self.end_as_asked(comm)
        self.meet("ended")
        self.reset_gpu()
        buffers = self.new_buffers()
        self.destroy_graph(graph)
        # The library frees memory of the next communicator together with the graph's memory.
        before = self.pieces()
        self.destroy(self.comm("next"))
        self.until(lambda: self.pieces() <= before)
        return sum(not self.is_allocation(buffer) for buffer in buffers)

    def is_allocation(self, buffer: Buffer) -> bool:
        plain, attribute = ctypes.c_int(), 10  # CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        self.cuda(self.mock.cuPointerGetAttribute(ctypes.byref(plain), attribute, ctypes.c_ulonglong(buffer.at)))
        return plain.value == 1

    def reset_gpu(self) -> None:
        device = ctypes.c_int()
        self.cuda(self.mock.cuCtxGetDevice(ctypes.byref(device)))
        self.cuda(self.mock.cuDevicePrimaryCtxReset_v2(device))
        self.use(device.value)

    def pieces(self) -> int:
        """Pieces of memory that the library has."""
        return int(self.mock.mock_pieces()) - Buffer.made
