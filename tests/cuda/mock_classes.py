"""Calls of a library of several classes of links on the mock driver: every collective and type, also in graphs."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mock_job import Array, Buffer, Comm, Job

from collc.bench.data import OPS, TYPES, Case
from collc.collectives.blocks import in_place_offsets
from collc.collectives.model import Collective
from collc.errors import RunError

COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
REPLAYS = 3


class WeightedCalls(Job):
    def weighted_calls(self) -> list[str]:
        """Every collective, type and operation, in place and not, for small and larger counts; the wrong ones."""
        comm, stream, wrong = self.comm(), self.stream(), []
        for type_name, op in self.given["kinds"]:
            for name in COLLECTIVES:
                for number, count in enumerate(self.given["counts"]):
                    reduces = Collective(name).reduces
                    case = Case(Collective(name), self.nranks, 1, count, TYPES[type_name], op if reduces else None)
                    run, result = self.prepared(case, comm, stream, in_place=number % 2 == 1)
                    run()
                    self.wait(stream)
                    if not result():
                        wrong.append(f"{name} {type_name} {op} {count}")
        self.destroy(comm)
        return wrong

    def kernels(self) -> dict[str, Any]:
        """Returns the result of a scenario, and the number of kernels of each protocol that ran."""
        wrong = getattr(self, self.given.get("scenario", "weighted_calls"))()
        return {
            "wrong": wrong,
            **{name: int(self.mock.mock_calls(name.encode())) for name in ("Simple", "LL", "LL128")},
        }

    def weighted_graphs(self) -> list[str]:
        """Every collective is captured; graphs and plain calls take turns. What was wrong, in every replay."""
        comm, stream, wrong = self.comm(), self.stream(), []
        graphs = []
        for name in COLLECTIVES:
            op = "sum" if Collective(name).reduces else None
            case = Case(Collective(name), self.nranks, 1, self.given["count"], TYPES["float"], op)
            run, result = self.prepared(case, comm, stream, in_place=False)
            graphs.append((name, self.captured(stream, run), run, result))
        for replay in range(REPLAYS):
            for name, ready, run, result in graphs:
                self.cuda(self.mock.cuGraphLaunch(ready, stream))
                self.wait(stream)
                if not result():
                    wrong.append(f"{name} in replay {replay}")
                run()
                self.wait(stream)
                if not result():
                    wrong.append(f"{name} called after replay {replay}")
        self.destroy(comm)
        return wrong

    def one_thread(self) -> list[str]:
        """Groups of one thread that drives all ranks, each on a separate GPU. Returns the errors."""
        nranks, wrong = self.given["nranks"], []
        made = (ctypes.c_void_p * nranks)()
        self.nccl.check(
            self.lib.ncclCommInitAll(made, nranks, (ctypes.c_int * nranks)(*range(nranks))), "ncclCommInitAll"
        )
        count = self.given["count"]
        sends, recvs, streams = [], [], []
        for rank in range(nranks):
            self.use(rank)
            sends.append(self.buffer(np.full(count, rank + 1, np.float32)))
            recvs.append(self.buffer(np.zeros(count, np.float32)))
            streams.append(self.stream())
        for call in range(self.given["calls"]):
            self.check(self.lib.ncclGroupStart())
            for rank in range(nranks):
                args = (ctypes.c_void_p(sends[rank].at), ctypes.c_void_p(recvs[rank].at), ctypes.c_size_t(count))
                self.check(self.lib.ncclAllReduce(*args, 7, 0, ctypes.c_void_p(made[rank]), streams[rank]))
            self.check(self.lib.ncclGroupEnd())
            for rank in range(nranks):
                self.wait(streams[rank])
                found: Any = recvs[rank].get()
                if not np.all(found == nranks * (nranks + 1) / 2):
                    wrong.append(f"rank {rank} in call {call}")
                recvs[rank].set(np.zeros(count, np.float32))
        for rank in range(nranks):
            self.check(self.lib.ncclCommDestroy(ctypes.c_void_p(made[rank])))
        return wrong

    def machine_name(self) -> str:
        """Returns the name of this machine in a tuning file."""
        name = self.nccl.lib.collc_machine
        name.restype = ctypes.c_char_p
        return str(name(), "utf-8")

    def lost_class(self) -> list[str]:
        """A class is lost between calls, by a word of the last rank or as an NVLink goes down; graphs hold it.

        Returns the errors. The ranks go on until the log of each rank has the expected lines.
        """
        comm, stream, wrong = self.comm(), self.stream(), []
        case = Case(Collective.ALL_REDUCE, self.nranks, 1, 2000, TYPES["float"], "sum")
        run, result = self.prepared(case, comm, stream, in_place=False)
        with self.overheard() as said:  # before there is a graph: another rank's word may come at once
            ready = self.captured(stream, run)
            down = self.given.get("down")
            if down and self.rank == self.given["at"]:
                os.environ["MOCK_DOWN"] = down
            if not down and self.rank == self.nranks - 1:
                wrong += [] if self.lib.collc_lose_class(comm, b"pcie") == 1 else ["not lost"]
            deadline = time.monotonic() + 60
            while b"capture them again" not in said() and time.monotonic() < deadline:
                time.sleep(0.05)
        for call in range(3):
            run()
            self.wait(stream)
            if not result():
                wrong.append(f"call {call}")
            self.cuda(self.mock.cuGraphLaunch(ready, stream))  # the class is memory here, and works
            self.wait(stream)
            if not result():
                wrong.append(f"replay {call}")
        self.destroy(comm)
        return wrong

    @contextmanager
    def overheard(self) -> Iterator[Callable[[], bytes]]:
        """Gives what this process has written to its log since."""
        with tempfile.TemporaryFile() as file:
            log = os.dup(2)
            os.dup2(file.fileno(), 2)
            try:
                yield lambda: os.pread(file.fileno(), 1 << 20, 0)
            finally:
                os.dup2(log, 2)
                os.write(2, os.pread(file.fileno(), 1 << 20, 0))

    def fewer_lanes(self) -> list[str]:
        """The link of PCIe of one GPU has half of its lanes from a call on; what was wrong.

        The ranks go on calling until that rank has said in its log that the class has failed.
        """
        comm, stream, wrong = self.comm(), self.stream(), []
        case = Case(Collective.ALL_REDUCE, self.nranks, 1, 20000, TYPES["float"], "sum")
        run, result = self.prepared(case, comm, stream, in_place=False)
        with self.overheard() as said:
            if self.rank == self.given["at"]:
                os.environ["MOCK_LANES"] = f"{self.rank}:8"
            deadline, number, heard = time.monotonic() + 60, 0, b""
            while heard != b"over":
                for _ in range(self.given["calls"]):  # one behind the other: a look counts that falls into them
                    run()
                self.wait(stream)
                if not result():
                    wrong.append(f"call {number}")
                if self.rank == self.given["at"]:
                    over = b"has failed" in said() or time.monotonic() > deadline
                    self.say(f"after-{number}", b"over" if over else b"on")
                heard, number = self.hear(f"after-{number}"), number + 1
        run()
        self.wait(stream)
        self.destroy(comm)
        return wrong if result() else [*wrong, "after the loss"]

    def one_gpu_stands(self) -> list[str]:
        """NVML stands still for the first GPU of this process, and then an NVLink between two others goes down."""
        nranks = self.given["nranks"]
        made = (ctypes.c_void_p * nranks)()
        self.nccl.check(
            self.lib.ncclCommInitAll(made, nranks, (ctypes.c_int * nranks)(*range(nranks))), "ncclCommInitAll"
        )
        os.environ["MOCK_NVML_AT"] = "0"
        self.asked("MOCK_NVML_STANDS", 1)
        with self.overheard() as said:
            os.environ["MOCK_DOWN"] = self.given["down"]
            self.until(lambda: b"nvlink has failed" in said())
        for rank in range(nranks):
            self.check(self.lib.ncclCommDestroy(ctypes.c_void_p(made[rank])))
        return []

    def nvlink_lost(self) -> list[str]:
        """The last rank says that NVLink has failed; the numbers of the calls after that with a wrong result."""
        comm, stream, wrong = self.comm(), self.stream(), []
        case = Case(Collective.ALL_REDUCE, self.nranks, 1, 2000, TYPES["float"], "sum")
        run, result = self.prepared(case, comm, stream, in_place=False)
        if self.rank == self.nranks - 1:
            wrong += [] if self.lib.collc_lose_class(comm, b"nvlink") == 1 else ["not lost"]
        self.meet("lost")
        for call in range(3):
            run()
            self.wait(stream)
            if not result():
                wrong.append(str(call))
        self.destroy(comm)
        return wrong

    def lost_copies(self) -> list[Any]:
        """The last rank says between calls by copies that a class has failed: what was wrong, and how many copies this
        rank's GPU makes of an all_gather and of a broadcast, before and after."""
        comm, stream, wrong, made = self.comm(), self.stream(), [], []
        for loses in (False, True):
            if loses and self.rank == self.nranks - 1:
                assert self.lib.collc_lose_class(comm, self.given["name"].encode()) == 1
            self.meet(f"lost {loses}")
            for collective in (Collective.ALL_GATHER, Collective.BROADCAST):
                case = Case(collective, self.nranks, 1, self.given["count"], TYPES["float"], None)
                run, result = self.prepared(case, comm, stream, in_place=False)
                before = self.mock.mock_calls(b"copy")
                run()
                made.append(self.mock.mock_calls(b"copy") - before)
                self.wait(stream)
                wrong += [] if result() else [f"{collective} {loses}"]
        wrong += ["kernels"] if self.mock.mock_calls(b"launch") else []
        self.destroy(comm)
        return [wrong, made]

    def same_call(self) -> list[str]:
        """One all_gather again and again; the numbers of the calls with a wrong result."""
        comm, stream, wrong = self.comm(), self.stream(), []
        case = Case(Collective.ALL_GATHER, self.nranks, 0, self.given["count"], TYPES["float"], None)
        run, result = self.prepared(case, comm, stream, in_place=False)
        for call in range(self.given["calls"]):
            run()
            self.wait(stream)
            if not result():
                wrong.append(str(call))
        self.destroy(comm)
        return wrong

    def late_rank(self) -> list[float]:
        """Seconds until each call was on its stream; the last rank comes late to every other one."""
        comm, stream, took = self.comm(), self.stream(), []
        case = Case(Collective.ALL_GATHER, self.nranks, 0, 100, TYPES["float"], None)
        run, result = self.prepared(case, comm, stream, in_place=False)
        for turn in range(3):  # in the first one what was proposed before may be unsettled, and nothing new is proposed
            if self.rank == self.nranks - 1:
                time.sleep(1.5)
            for _ in range(2):
                start = time.monotonic()
                run()
                took.append(time.monotonic() - start)
            self.wait(stream)
            assert result()
            self.meet(f"turn {turn}")
        self.destroy(comm)
        return took

    def missing_rank(self) -> str:
        """Returns the error of a rank whose call rank 0 never joins. NVML may hang by then."""
        comm, stream = self.comm(), self.stream()
        if self.given.get("stands"):
            self.asked("MOCK_NVML_STANDS", 1)
        self.meet("ready")
        if self.rank == 0:
            self.hear("told-1")
            text = ""
        else:
            case = Case(Collective.ALL_GATHER, self.nranks, 0, 2500, TYPES["float"], None)
            run, _ = self.prepared(case, comm, stream, in_place=False)
            run()
            self.until(lambda: self.error(comm) not in (0, 7))
            try:
                run()  # a call on a broken communicator says why it is broken
                text = ""
            except RunError as error:
                text = str(error)
            self.say(f"told-{self.rank}")
        self.comms = [other for other in self.comms if other is not comm]
        self.check(self.lib.ncclCommAbort(comm))
        return text

    def unknown_links(self) -> list[str]:
        """NVML does not tell of links for a while; what was wrong with calls then."""
        comm, stream, wrong = self.comm(), self.stream(), []
        self.asked("MOCK_NVML_FAILS", 8)
        case = Case(Collective.ALL_REDUCE, self.nranks, 1, 2000, TYPES["float"], "sum")
        run, result = self.prepared(case, comm, stream, in_place=False)
        for call in range(3):
            run()
            self.wait(stream)
            if not result():
                wrong.append(f"call {call}")
        self.destroy(comm)
        return wrong

    def asked(self, variable: str, times: int) -> None:
        """Waits until NVML was asked so often and did as the variable says."""
        with tempfile.NamedTemporaryFile(delete=False) as file:
            os.environ[variable] = file.name
        self.until(lambda: os.path.getsize(file.name) >= times)

    def prepared(
        self, case: Case, comm: Comm, stream: ctypes.c_void_p, *, in_place: bool
    ) -> tuple[Callable[[], None], Callable[[], bool]]:
        """A call that may run any number of times if not in place; and whether its output is right, which it wipes."""
        size, data = case.kind.size, case.send_data(self.rank)
        many = max(case.send_elements, case.recv_elements) if in_place else case.recv_elements
        empty = np.frombuffer(b"\xcd" * (many * size), dtype=case.kind.carrier).copy()
        in_at, out_at = (at * case.count * in_place for at in in_place_offsets(case.collective, self.rank))
        if in_place:
            empty[in_at : in_at + case.send_elements] = data
        output = self.buffer(empty)
        start = output.at + in_at * size if in_place else self.buffer(data).at
        wanted = empty.copy()
        result = case.expected(self.rank)
        if result is not None:
            wanted[out_at : out_at + case.recv_elements] = result

        def run() -> None:
            operation = [OPS[case.op or "sum"]] if case.collective.reduces else []
            roots = [case.root] if case.collective.rooted else []
            call = getattr(self.lib, f"nccl{case.collective.traits.title}")
            at = output.at + out_at * size
            self.check(call(start, at, case.count, case.kind.number, *operation, *roots, comm, stream))

        return run, lambda: is_right(output, wanted, empty)


def is_right(output: Buffer, wanted: Array, empty: Array) -> bool:
    found: Any = output.get().tobytes() == wanted.tobytes()
    output.set(empty)
    return bool(found)
