"""Scenarios of buffers that other processes read where they stand, in libraries of --direct (see mock_scenarios.py).

After each call, its stream overwrites the input, which shows a reader that comes too late.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from functools import partial

import numpy as np
from mock_job import FLOAT, PATIENCE, Array, Buffer, Comm, Job
from mock_order import Call, Ordered, sizes

from collc.bench.data import OPS, TYPES, Case
from collc.collectives.model import Collective


class Plain(Buffer):
    """Memory of cudaMalloc, which others read while it is registered."""

    def __init__(self, job: Job, content: Array) -> None:
        at = ctypes.c_ulonglong()
        job.cuda(job.mock.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(max(content.nbytes, 16))))
        self.at, self.like = at.value, content
        self.registered: list[Comm] = []
        self.set(content)


class Lending(Ordered):
    """With `plain` given, buffers come from cudaMalloc and are registered; otherwise they come from ncclMemAlloc."""

    def buffer(self, content: Array) -> Buffer:
        return Plain(self, content) if self.given.get("plain") else Buffer(self, content)

    def room(self, count: int) -> Buffer:
        return self.buffer(np.full(count, -1, dtype=np.float32))

    def register(self, buffer: Buffer, comm: Comm) -> None:
        handle, size = ctypes.c_void_p(), ctypes.c_size_t(buffer.like.nbytes)
        self.check(self.lib.ncclCommRegister(comm, ctypes.c_void_p(buffer.at), size, ctypes.byref(handle)))
        if isinstance(buffer, Plain):
            buffer.registered.append(comm)

    def window(self, buffer: Buffer, comm: Comm) -> None:
        """Others have mapped a buffer when this returns."""
        window, size = ctypes.c_void_p(), ctypes.c_size_t(buffer.like.nbytes)
        if isinstance(buffer, Plain):
            self.register(buffer, comm)
        self.check(self.lib.ncclCommWindowRegister(comm, ctypes.c_void_p(buffer.at), size, ctypes.byref(window), 0))

    def deregister(self, buffer: Plain) -> None:
        for comm in buffer.registered:
            if any(comm is other for other in self.comms):
                self.check(self.lib.ncclCommDeregister(comm, ctypes.c_void_p(buffer.at)))
        buffer.registered.clear()

    def free(self, buffer: Buffer) -> None:
        if isinstance(buffer, Plain):
            self.deregister(buffer)
            self.cuda(self.mock.cuMemFree_v2(*sizes(buffer.at)))
        else:
            self.check(self.lib.ncclMemFree(ctypes.c_void_p(buffer.at)))

    def abort(self, comm: Comm) -> None:
        self.comms = [other for other in self.comms if other is not comm]
        self.check(self.lib.ncclCommAbort(comm))

    def pieces(self) -> int:
        return int(self.mock.mock_pieces())

    def overwrite(self, buffer: Buffer, stream: ctypes.c_void_p) -> None:
        at, size = sizes(buffer.at, buffer.like.nbytes)
        self.cuda(self.mock.cuMemsetD8Async(at, 0x55, size, stream))

    def sum_and_overwrite(self, call: Call, comm: Comm, stream: ctypes.c_void_p) -> bool:
        """One all_reduce, whose input comes before it and is overwritten behind it; whether its result is right."""
        sent, room, tag = call
        sent.set(self.data(self.rank, sent.like.size, tag))
        room.set(np.full(room.like.size, -1, dtype=np.float32))
        self.call(call, comm, stream)
        self.overwrite(sent, stream)
        self.wait(stream)
        return self.summed([call])

    def lent(self, count: int, tag: int, comm: Comm) -> Call:
        """Buffers of an all_reduce that others have mapped."""
        call = self.summand(count, tag)
        for buffer in call[:2]:
            self.window(buffer, comm)
        return call

    def lent_collectives(self) -> list[str]:
        """Every collective, out of place and in place, with buffers that others have mapped; the wrong ones."""
        comm, stream, wrong = self.comm(), self.stream(), list[str]()
        calls = {"all_reduce": "ncclAllReduce", "broadcast": "ncclBroadcast", "reduce": "ncclReduce"}
        calls |= {"all_gather": "ncclAllGather", "reduce_scatter": "ncclReduceScatter"}
        for name, count in ((name, count) for name in calls for count in (777, 2004)):
            op = "sum" if "reduce" in name else None
            case = Case(Collective(name), self.nranks, 1, count, TYPES["float"], op)
            send, recv = self.buffer(case.send_data(self.rank)), self.room(max(case.recv_elements, 1))
            for buffer in send, recv:
                self.window(buffer, comm)
            middle = [*([OPS[op]] if op else []), *([1] if name in ("broadcast", "reduce") else [])]
            self.check(getattr(self.lib, calls[name])(send.at, recv.at, count, FLOAT, *middle, comm, stream))
            self.overwrite(send, stream)
            self.wait(stream)
            expected = case.expected(self.rank)
            if expected is not None and not np.array_equal(recv.get()[: expected.size], expected):
                wrong.append(f"{name} {count}")
        for turn in range(3):
            _, both, tag = call = self.lent(1504, turn, comm)
            both.set(self.data(self.rank, 1504, tag))
            self.call((both, both, tag), comm, stream)
            self.wait(stream)
            wrong += [] if self.summed([call]) else [f"in place {turn}"]
        self.destroy(comm)
        return wrong

    def lent_in_graphs(self) -> list[str]:
        """A graph of calls whose buffers others have mapped; beside it what is freed and made anew. The wrong turns.

        Before the last one its buffers are no longer registered: the graph reads them all the same.
        """
        comm, stream, wrong = self.comm(), self.stream(), list[str]()
        calls = [self.lent(count, tag, comm) for tag, count in enumerate((900, 40, 500))]
        kept = [self.buffer(sent.like) for sent, _, _ in calls]
        graph = self.captured(stream, partial(self.call_all, calls, comm, stream))
        for turn in range(4):
            for (sent, room, _), content in zip(calls, kept, strict=True):
                room.set(np.full(room.like.size, -1, dtype=np.float32))
                self.cuda(self.mock.cuMemcpyAsync(*sizes(sent.at, content.at, sent.like.nbytes), stream))
            for buffer in (buffer for call in calls for buffer in call[:2] if turn == 3):
                if isinstance(buffer, Plain):
                    self.deregister(buffer)
            self.cuda(self.mock.cuGraphLaunch(graph, stream))
            for sent, _, _ in calls:
                self.overwrite(sent, stream)
            self.wait(stream)
            wrong += [] if self.summed(calls) else [f"turn {turn}"]
            beside = self.lent(300, 10 + turn, comm)
            wrong += [] if self.sum_and_overwrite(beside, comm, stream) else [f"beside turn {turn}"]
            for buffer in beside[:2]:
                self.free(buffer)
        self.destroy(comm)
        return wrong

    def lent_without_windows(self) -> str:
        """Repeats calls on the same buffers until a result is wrong, as with lent buffers on a driver that takes all
        data from slots. Returns "right" if no result is wrong."""
        comm, stream = self.comm(), self.stream()
        call, answer = self.summand(776, 0), "right"
        if self.given.get("plain"):
            for buffer in call[:2]:
                self.register(buffer, comm)
        for turn in range(self.given["turns"]):
            good = self.sum_and_overwrite(call, comm, stream)
            self.say(f"turn-{turn}-{self.rank}", b"good" if good else b"wrong")
            if any(self.hear(f"turn-{turn}-{rank}") == b"wrong" for rank in range(self.nranks)):
                answer = "wrong"
                break
        self.destroy(comm)
        return answer

    def freed_and_made_anew(self) -> list[str]:
        """Buffers that come and go, at the addresses of others before them; two kept ones among them. What is wrong."""
        comm, stream, wrong, seen = self.comm(), self.stream(), list[str](), list[int]()
        before = self.pieces()
        self.meet("begun")
        kept = self.lent(500, 1000, comm)
        for turn in range(self.given["turns"]):
            made = [self.summand(100 + 50 * ((turn + i) % 7), 10 * turn + i) for i in range(3)]
            seen += [call[0].at for call in made]
            for call in made:
                for buffer in call[:2]:
                    if turn % 3 != 2:  # else they are offered by the call itself
                        self.window(buffer, comm)
                if not self.sum_and_overwrite(call, comm, stream):
                    wrong.append(f"turn {turn}")
            if not self.sum_and_overwrite(kept, comm, stream):
                wrong.append(f"kept, turn {turn}")
            for call in made:
                for buffer in call[:2]:
                    self.free(buffer)
        for buffer in kept[:2]:
            self.free(buffer)
        # Memory that other ranks have freed is unmapped here soon.
        try:
            self.until(lambda: self.pieces() <= before)
        except RuntimeError:
            wrong.append(f"{self.pieces()} pieces of memory instead of {before}")
        if len(set(seen)) == len(seen):
            wrong.append("no address came twice")
        self.meet("returned")  # a rank that has left reports no freed memory
        self.destroy(comm)
        return wrong

    def freed_while_registered(self) -> list[str]:
        """Registered memory that is freed without a word: what comes at its address counts as not registered. The wrong
        turns."""
        comm, stream, wrong = self.comm(), self.stream(), list[str]()
        for turn in range(4):
            call = self.lent(500, turn, comm)
            if not self.sum_and_overwrite(call, comm, stream):
                wrong.append(f"turn {turn}")
            where = {buffer.at for buffer in call[:2]}
            for buffer in call[:2]:
                self.cuda(self.mock.cuMemFree_v2(*sizes(buffer.at)))
            anew = self.summand(500, 100 + turn)
            if {buffer.at for buffer in anew[:2]} != where:
                wrong.append("no address came twice")
            if not self.sum_and_overwrite(anew, comm, stream):
                wrong.append(f"anew, turn {turn}")
        self.destroy(comm)
        return wrong

    def withdrawn_and_offered_again(self) -> list[bool]:
        """While a reader is stopped, buffers are registered, withdrawn, and registered in the place of each other.

        Another communicator has them registered as well, so they are the same when they come again. Then one that is
        withdrawn amid a capture.
        """
        comm, stream, right = self.comm(), self.stream(), list[bool]()
        both = self.comm("both", [0, 2]) if self.rank != 1 else None
        again, other = self.summand(500, 1), self.summand(500, 2)
        self.say(f"pid-{self.rank}", str(os.getpid()).encode())
        self.meet("made")
        if both is not None:
            for call in again, other:
                self.register(call[0], both)
        for turn in range(4):
            if self.rank == 0:
                pid = int(self.hear("pid-1"))
                os.kill(pid, signal.SIGSTOP)
                for sent in again[0], other[0]:
                    self.register(sent, comm)
                    self.check(self.lib.ncclCommDeregister(comm, ctypes.c_void_p(sent.at)))
                for sent in other[0], again[0]:
                    self.register(sent, comm)
                os.kill(pid, signal.SIGCONT)
                for sent in other[0], again[0]:
                    self.window(sent, comm)
                self.say(f"going-{turn}")
            self.hear(f"going-{turn}")
            right += [self.sum_and_overwrite(call, comm, stream) for call in (again, other)]
            if self.rank == 0:
                for sent in other[0], again[0]:
                    for _ in range(2):
                        self.check(self.lib.ncclCommDeregister(comm, ctypes.c_void_p(sent.at)))
        last = self.lent(300, 3, comm)
        right.append(self.sum_and_overwrite(last, comm, stream))
        assert isinstance(last[0], Plain)
        self.captured(self.stream(), partial(self.deregister, last[0]))
        self.destroy(comm)
        if both is not None:
            self.destroy(both)
        return right

    def many_lent(self) -> list[int]:
        """Uses each of many lent buffers twice. Returns the wrong ones."""
        comm, stream = self.comm(), self.stream()
        calls = [self.summand(100 + tag, tag) for tag in range(self.given["buffers"])]
        for call in calls:
            for buffer in call[:2]:
                self.register(buffer, comm)
        for buffer in calls[-1][:2]:
            self.window(buffer, comm)
        wrong = [call[2] for turn in range(2) for call in calls if not self.sum_and_overwrite(call, comm, stream)]
        self.destroy(comm)
        return wrong

    def lent_and_split(self) -> list[bool]:
        """A communicator, its splits, and a second communicator: each knows only its own registrations."""
        comm, stream, right = self.comm(), self.stream(), list[bool]()
        part = Comm()
        self.check(self.lib.ncclCommSplit(comm, 0, -self.rank, ctypes.byref(part), None))
        self.comms.append(part)
        other = self.comm("other")
        call = self.lent(700, 5, comm)
        for one in comm, part, other, comm:
            right.append(self.sum_and_overwrite(call, one, stream))
        self.destroy(comm)
        for buffer in call[:2]:
            self.window(buffer, part)
        right.append(self.sum_and_overwrite(call, part, stream))
        for buffer in call[:2]:
            self.free(buffer)
        right.append(self.sum_and_overwrite(self.lent(700, 6, other), other, stream))
        self.destroy(part)
        self.destroy(other)
        return right

    def lent_and_killed(self) -> str:
        """Rank 1 is killed amid calls with lent buffers. Returns the others' errors, and creates a new communicator."""
        comm, stream = self.comm(), self.stream()
        call = self.lent(3000, 3, comm)
        assert self.sum_and_overwrite(call, comm, stream)
        self.meet("lent")
        if self.rank == 1:
            self.say("end-1")
            self.call(call, comm, stream)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for _ in range(50):
                self.call(call, comm, stream)
        except Exception as error:  # where it is seen before the last call
            told = str(error)
        self.until(lambda: self.error(comm) not in (0, 7))
        told = self.text()
        self.abort(comm)
        for buffer in call[:2]:
            self.free(buffer)
        left = self.comm("left", [0, 2])
        again = self.lent(600, 4, left)
        self.call(again, left, stream)
        self.wait(stream)
        expected = sum(self.data(rank, 600, 4) for rank in (0, 2))
        return told if np.array_equal(again[1].get(), expected) else "wrong results afterwards"

    def aborted_and_freed(self) -> bool:
        """Ranks abort amid calls on lent buffers and free them at once, while peers may still be at a chunk."""
        for turn in range(self.given["turns"]):
            comm, stream = self.comm(f"turn-{turn}"), self.stream()
            calls = [self.lent(2000, tag, comm) for tag in range(3)]
            self.meet(f"lent-{turn}")
            if self.rank != turn % self.nranks:
                for call in calls * 3:
                    self.all_reduce(call[0], call[1], comm, stream)
            self.abort(comm)
            self.mock.cuStreamSynchronize(stream)
            for call in calls:
                for buffer in call[:2]:
                    self.free(buffer)
        comm, stream = self.comm("last"), self.stream()
        right = self.sum_and_overwrite(self.lent(500, 9, comm), comm, stream)
        self.destroy(comm)
        return right

    def forked_while_lent(self) -> bool:
        """A child that frees and ends changes nothing for its parent, whose buffers stay lent."""
        comm, stream = self.comm(), self.stream()
        call = self.lent(700, 5, comm)
        right = self.sum_and_overwrite(call, comm, stream)
        self.meet("lent")
        child = os.fork()
        if child == 0:
            os._exit(0)
        right &= os.waitpid(child, 0)[1] == 0
        right &= self.sum_and_overwrite(call, comm, stream)
        right &= self.sum_and_overwrite(self.lent(900, 6, comm), comm, stream)
        self.destroy(comm)
        return right

    def descriptors_closed_while_lent(self) -> bool:
        """A program closes all descriptors that it finds, as daemons do: its calls go on, over slots or not."""
        comm, stream = self.comm(), self.stream()
        call = self.lent(700, 5, comm)
        right = self.sum_and_overwrite(call, comm, stream)
        self.meet("lent")
        if self.rank == 1:
            os.closerange(3, 1 << 16)
        new = self.summand(500, 7)
        for _ in range(4):
            right &= self.sum_and_overwrite(call, comm, stream) and self.sum_and_overwrite(new, comm, stream)
        self.destroy(comm)
        return right

    def memory_that_comes_back(self) -> bool:
        """Buffers of more than half of the GPU's memory, one after the other: what readers hold comes back in time."""
        comm, stream, right = self.comm(), self.stream(), True
        for turn in range(self.given["turns"]):
            large = self.room(self.given["megabytes"] << 18)
            self.window(large, comm)
            part = Buffer.__new__(Buffer)
            part.at, part.like = large.at, self.data(self.rank, 300, turn)
            right &= self.sum_and_overwrite((part, self.room(300), turn), comm, stream)
            self.free(large)
        self.destroy(comm)
        return right

    def stopped_reader(self) -> bool:
        """A reader that is stopped when a buffer is freed: who frees and allocates does not wait for it for ever."""
        comm, stream = self.comm(), self.stream()
        call = self.lent(700, 5, comm)
        right = self.sum_and_overwrite(call, comm, stream)
        self.say(f"pid-{self.rank}", str(os.getpid()).encode())
        self.meet("lent")
        if self.rank == 0:
            pid = int(self.hear("pid-1"))
            os.kill(pid, signal.SIGSTOP)
            start = time.monotonic()
            self.free(call[0])
            call = self.buffer(call[0].like), call[1], call[2]
            right &= time.monotonic() - start < PATIENCE
            os.kill(pid, signal.SIGCONT)
            self.say("going")
        self.hear("going")
        right &= self.sum_and_overwrite(call, comm, stream)
        self.destroy(comm)
        return right
