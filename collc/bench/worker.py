"""Runs one rank of a benchmark. Reads orders as JSON objects, and answers with JSON objects.

`collc.bench.team` runs it in a separate process (`main`), or it runs in a process that a launcher started.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from collc.bench.breakdown import read_times, since
from collc.bench.data import OPS, TYPES, Array, Case
from collc.bench.launchers import Place
from collc.bench.meeting import join
from collc.bench.nccl import Nccl
from collc.bench.pairs import read_pairs
from collc.checker.layout import PROTOCOLS
from collc.collectives.blocks import in_place_offsets
from collc.collectives.model import Collective
from collc.errors import CollcError, RunError
from collc.network.machine import this_machine

GUARD = 64  # bytes before and after every buffer that a call must not write
_GUARD_BYTE, UNWRITTEN = 0xC3, 0xA5


class Buffer:
    """Bytes between two guards, 64-byte aligned."""

    def __init__(self, size: int) -> None:
        raw = np.full(size + 2 * GUARD + 64, _GUARD_BYTE, dtype=np.uint8)
        skip = -raw.ctypes.data % 64
        self.all = raw[skip : skip + size + 2 * GUARD]
        self.data = self.all[GUARD : GUARD + size]
        self.address = self.data.ctypes.data

    def put(self, values: Array, at: int = 0) -> None:
        raw = values.view(np.uint8)
        self.data[at : at + raw.size] = raw

    def intact(self) -> bool:
        size = self.data.size
        return bool((self.all[:GUARD] == _GUARD_BYTE).all() and (self.all[GUARD + size :] == _GUARD_BYTE).all())


# Exceptions that a rank reports in its answer. Any other one is a bug and ends the rank.
FAILURES = (CollcError, MemoryError, OSError)


def failed(error: BaseException) -> dict[str, str | None]:
    """Returns the answer of a rank after a failure: the message and the hint."""
    if isinstance(error, MemoryError):
        error = RunError(f"no memory for its buffers: {error}".rstrip(": "), hint="choose a smaller -e")
    elif isinstance(error, OSError):
        hint = "`collc doctor` looks for causes"
        error = RunError(error.strerror or str(error), where=error.filename, hint=hint)
    if not isinstance(error, CollcError):
        return {"error": str(error), "hint": None}
    return {"error": f"{error.where}: {error.what}" if error.where else error.what, "hint": error.hint}


SomeBuffer = TypeVar("SomeBuffer", bound=Buffer)


def make_buffers(
    case: Case, rank: int, in_place: bool, make: Callable[[int], SomeBuffer]
) -> tuple[SomeBuffer, SomeBuffer, int, int]:
    """Returns send and receive buffers and the byte offsets of the data in them, as in NCCL's in-place calls."""
    size = case.kind.size
    send_bytes, recv_bytes = case.send_elements * size, case.recv_elements * size
    if not in_place:
        return make(send_bytes), make(recv_bytes), 0, 0
    both = make(max(send_bytes, recv_bytes))
    send_at, recv_at = (at * case.count * size for at in in_place_offsets(case.collective, rank))
    return both, both, send_at, recv_at


def count_wrong(case: Case, rank: int, send: Buffer, recv: Buffer, recv_at: int) -> int:
    """Returns the number of elements that differ from the result of one call on fresh buffers.

    Raises:
        RunError: memory outside the buffers was written.
    """
    if not (send.intact() and recv.intact()):
        raise RunError(f"{case.collective.value} wrote outside its buffer", where=f"rank {rank}")
    wrong = 0
    expected = case.expected(rank)
    if expected is not None:
        raw = expected.view(np.uint8)
        got = recv.data[recv_at : recv_at + raw.size]
        wrong += int((got.reshape(-1, case.kind.size) != raw.reshape(-1, case.kind.size)).any(axis=1).sum())
    elif recv is not send:
        wrong += int((recv.data != UNWRITTEN).sum())
    if recv is not send:
        wrong += int((send.data != case.send_data(rank).view(np.uint8)).sum())  # an input may not change
    return wrong


def what_runs(nccl: Nccl, comm: ctypes.c_void_p, case: Case) -> dict[str, Any]:
    """Returns the number of the program that a case runs (-1 if unknown) and its protocol (None if unknown).

    The keys are `program` and `proto`.
    """
    found = []
    for name in ("collc_program_of", "collc_protocol_of"):
        ask = getattr(nccl.lib, name, None)
        if ask is None:
            found.append(-1)
            continue
        ask.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint64]
        found.append(int(ask(comm, case.collective.traits.number, case.root, case.count * case.kind.size)))
    names = {number: name for name, number in PROTOCOLS.items()}
    return {"program": found[0], "proto": names.get(found[1])}


def what_serves(nccl: Nccl, comm: ctypes.c_void_p) -> dict[str, Any]:
    """Returns the state of the machine and the allocation that a communicator uses; -1 if unknown."""
    found = {"state": -1, "allocation": -1}
    for name in found:
        ask = getattr(nccl.lib, f"collc_{name}_of", None)
        if ask is not None:
            ask.argtypes = [ctypes.c_void_p]
            found[name] = int(ask(comm))
    return found


class Rank:
    """The state of one rank."""

    def __init__(self, library: Path) -> None:
        self.nccl = Nccl(library)
        self.comm: ctypes.c_void_p | None = None
        self.rank = self.nranks = 0

    def init(self, order: dict[str, Any]) -> dict[str, Any]:
        self.rank, self.nranks = order["rank"], order["nranks"]
        self.comm = self.nccl.comm(self.nranks, bytes.fromhex(order["id"]), self.rank)
        return {**what_serves(self.nccl, self.comm), "machine": this_machine()}

    def case(self, order: dict[str, Any]) -> dict[str, Any]:
        """Runs, times and checks one case, after a warmup."""
        assert self.comm is not None
        kind = TYPES[order["type"]]
        case = Case(Collective(order["collective"]), self.nranks, order["root"], order["count"], kind, order["op"])
        send, recv, send_at, recv_at = make_buffers(case, self.rank, order["in_place"], Buffer)
        op = OPS[case.op] if case.op else 0

        def call(times: int) -> float:
            assert self.comm is not None
            start = time.perf_counter()
            for _ in range(times):
                result = self.nccl.call(
                    case.collective,
                    send.address + send_at,
                    recv.address + recv_at,
                    case.count,
                    kind.number,
                    op,
                    case.root,
                    self.comm,
                )
                if result:
                    self.nccl.check(result, case.collective.value)
            return time.perf_counter() - start

        send.put(case.send_data(self.rank), send_at)
        call(order["warmup"])
        before = read_times(self.nccl.lib, self.comm)
        seconds = call(order["iters"]) / max(1, order["iters"])
        times = since(before, read_times(self.nccl.lib, self.comm))
        wrong = None
        for _ in range(order["check"]):
            wrong = (wrong or 0) + self.check(case, send, recv, send_at, recv_at, call)
        return {"seconds": seconds, "wrong": wrong, "times": times, **what_runs(self.nccl, self.comm, case)}

    def check(self, case: Case, send: Buffer, recv: Buffer, send_at: int, recv_at: int, call: Any) -> int:
        """Runs the case once on fresh data and returns the number of wrong elements."""
        recv.data[:] = UNWRITTEN
        send.put(case.send_data(self.rank), send_at)
        call(1)
        return count_wrong(case, self.rank, send, recv, recv_at)

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        match order["do"]:
            case "id":
                return {"id": self.nccl.unique_id().hex()}
            case "init":
                return self.init(order)
            case "case":
                return self.case(order)
            case "checked":
                assert self.comm is not None
                return {"pairs": read_pairs(self.nccl.lib, self.comm)}
            case _:
                return self.close()

    def close(self) -> dict[str, Any]:
        if self.comm is not None:
            self.nccl.check(self.nccl.lib.ncclCommDestroy(self.comm), "ncclCommDestroy")
            self.comm = None
        return {}


def serve(
    library: Path,
    orders: Iterable[dict[str, Any]],
    answer: Callable[[dict[str, Any]], None],
    make: Callable[[Path], Rank] = Rank,
) -> bool:
    """Executes the orders and answers each. Returns True if the last one was "close"."""
    rank: Rank | None = None
    closed = False
    for order in orders:
        try:
            if rank is None:
                rank = make(library)
            closed = order["do"] == "close"
            done = rank.obey(order)
        except FAILURES as error:
            done = dict(failed(error))
        answer(done)
    return closed


def serve_place(library: Path, place: Place, make: Callable[[Path], Rank] = Rank) -> bool:
    """Runs rank 1, 2 ... of a launcher's job for rank 0. Returns False if rank 0 ended early.

    Args:
        make: makes the rank; `collc tune` has its own type.

    Raises:
        RunError: rank 0 did not come.
    """
    line = join(place)
    try:
        return serve(library, iter(line.receive, None), line.send, make)
    except OSError:
        return False
    finally:
        line.close()


def answer_line(answer: dict[str, Any]) -> None:
    """Writes an answer to standard output for the team."""
    print(json.dumps(answer), flush=True)


def main() -> None:
    """Executes the orders from standard input until it ends."""
    serve(Path(sys.argv[1]), map(json.loads, sys.stdin), answer_line)


if __name__ == "__main__":
    main()
