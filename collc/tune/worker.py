"""Runs one rank of a tuning run: a rank of bench that also runs chosen programs in turn on the same buffers.

`collc.bench.team` runs it as ``python -m collc.tune.worker LIBRARY``.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collc.bench.data import TYPES, Case
from collc.bench.nccl import Nccl
from collc.bench.worker import Buffer, Rank, answer_line, make_buffers, serve
from collc.collectives.model import Collective
from collc.errors import RunError
from collc.topology.model import JOINT

FLOAT = TYPES["float"]
SUM = 0


def declare(nccl: Nccl, library: Path) -> None:
    """Declares the types of a library's functions for tuning.

    Raises:
        RunError: the library does not export them.
    """
    lib = nccl.lib
    try:
        lib.collc_machine.restype = ctypes.c_char_p
        lib.collc_program_of.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint64]
        lib.collc_force_program.argtypes = [ctypes.c_void_p, ctypes.c_int]
        lib.collc_force_weights.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        lib.collc_class_times.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]
    except AttributeError:
        raise RunError("was compiled by a version without support for tuning", where=str(library)) from None


def machine_of(nccl: Nccl) -> dict[str, Any]:
    """Returns the kind of this machine, as in a tuning file."""
    return {"machine": nccl.lib.collc_machine().decode()}


def program_of(nccl: Nccl, comm: ctypes.c_void_p | None, order: dict[str, Any]) -> dict[str, Any]:
    """Returns the number of the program, among all programs of the library, that a call runs by the present table."""
    number = Collective(order["collective"]).traits.number
    return {"program": nccl.lib.collc_program_of(comm, number, order["root"], order["bytes"])}


def case_of(order: dict[str, Any], nranks: int) -> Case:
    """Returns the call of an order, with float32 elements, and as a sum if it reduces."""
    collective = Collective(order["collective"])
    return Case(collective, nranks, order["root"], order["count"], FLOAT, "sum" if collective.reduces else None)


def class_times(lib: ctypes.CDLL, comm: ctypes.c_void_p | None) -> list[float] | None:
    """Returns the seconds until each class had finished in the latest call, in the order of JOINT; None if unknown."""
    spent = (ctypes.c_uint64 * len(JOINT))()
    return [one / 1e9 for one in spent] if lib.collc_class_times(comm, spent) else None


def take_turns(
    order: dict[str, Any], force: Callable[[int, int], None], repeat: Callable[[int], float]
) -> list[list[float]]:
    """Returns the seconds per call: for each repeat a list in the order of `programs`.

    The programs take turns, and every repeat begins with a different one, so that a disturbance affects all equally.
    Before its timed calls each program runs once, unless only one call is timed.

    Args:
        force: sets the program and its weights for later calls.
        repeat: makes a number of calls and returns their seconds.
    """
    programs, iters = order["programs"], order["iters"]
    seconds = [[0.0] * len(programs) for _ in range(order["repeats"])]
    for turn, row in enumerate(seconds):
        for i in range(len(programs)):
            at = (i + turn) % len(programs)
            force(programs[at], order["weights"][at])
            if iters > 1:
                repeat(1)
            row[at] = repeat(iters) / iters
    return seconds


class TunedRank(Rank):
    """A rank whose programs can be chosen."""

    def __init__(self, library: Path) -> None:
        super().__init__(library)
        declare(self.nccl, library)
        self.kept: object = None  # the buffers of the latest call

    def measure(self, order: dict[str, Any]) -> dict[str, Any]:
        """Returns the seconds per call of `take_turns`."""
        case, addresses = self.buffers(order)
        return {"seconds": take_turns(order, self.force, lambda times: self.repeat(case, addresses, times))}

    def classes(self, order: dict[str, Any]) -> dict[str, Any]:
        """Returns for each call the seconds until each path class had finished here; None if unknown."""
        case, addresses = self.buffers(order)
        self.force(order["program"], order["weights"])
        self.repeat(case, addresses, 1)
        times = []
        for _ in range(order["iters"]):
            self.repeat(case, addresses, 1)
            times.append(class_times(self.nccl.lib, self.comm))
        return {"times": None if None in times else times}

    def buffers(self, order: dict[str, Any]) -> tuple[Case, tuple[int, int]]:
        """Returns the call of an order, and the addresses of its buffers with data of this rank."""
        case = case_of(order, self.nranks)
        send, recv, send_at, recv_at = make_buffers(case, self.rank, False, Buffer)
        self.kept = (send, recv)
        send.put(case.send_data(self.rank), send_at)
        return case, (send.address + send_at, recv.address + recv_at)

    def force(self, program: int, weights: int) -> None:
        lib = self.nccl.lib
        if not (lib.collc_force_program(self.comm, program) and lib.collc_force_weights(self.comm, weights)):
            raise RunError(f"has no program {program} for this communicator")

    def repeat(self, case: Case, addresses: tuple[int, int], times: int) -> float:
        """Makes `times` calls and returns their seconds."""
        assert self.comm is not None
        call, comm = self.nccl.call, self.comm
        start = time.perf_counter()
        for _ in range(times):
            result = call(case.collective, *addresses, case.count, FLOAT.number, SUM, case.root, comm)
            if result:
                self.nccl.check(result, case.collective.value)
        return time.perf_counter() - start

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        match order["do"]:
            case "machine":
                return machine_of(self.nccl)
            case "program":
                return program_of(self.nccl, self.comm, order)
            case "measure":
                return self.measure(order)
            case "classes":
                return self.classes(order)
            case _:
                return super().obey(order)


def main() -> None:
    """Executes the orders from standard input until it ends."""
    serve(Path(sys.argv[1]), map(json.loads, sys.stdin), answer_line, TunedRank)


if __name__ == "__main__":
    main()
