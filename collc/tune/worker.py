"""One rank of a tuning run: bench's rank, that also runs chosen programs in turn on the same buffers.

Run by `collc.bench.team` as ``python -m collc.tune.worker LIBRARY``.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

from collc.bench.data import TYPES, Case
from collc.bench.worker import Buffer, Rank, make_buffers, serve
from collc.collectives.model import Collective
from collc.errors import RunError

FLOAT = TYPES["float"]
SUM = 0


class TunedRank(Rank):
    """A rank whose programs can be chosen."""

    def __init__(self, library: Path) -> None:
        super().__init__(library)
        lib = self.nccl.lib
        try:
            lib.collc_machine.restype = ctypes.c_char_p
            lib.collc_program_of.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint64]
            lib.collc_force_program.argtypes = [ctypes.c_void_p, ctypes.c_int]
        except AttributeError:
            raise RunError("was compiled by a version without support for tuning", where=str(library)) from None

    def machine(self) -> dict[str, Any]:
        return {"machine": self.nccl.lib.collc_machine().decode()}

    def program(self, order: dict[str, Any]) -> dict[str, Any]:
        """The number, among all of the library's, of the program that a call runs by the table in use."""
        number = Collective(order["collective"]).traits.number
        return {"program": self.nccl.lib.collc_program_of(self.comm, number, order["root"], order["bytes"])}

    def measure(self, order: dict[str, Any]) -> dict[str, Any]:
        """Seconds per call: for each repeat a list in the order of `programs`.

        The programs take turns, and every repeat begins with a different one, so that a disturbance affects all
        equally. Before its timed calls each runs once, unless a call is so long that this would only double the wait.
        """
        assert self.comm is not None
        collective = Collective(order["collective"])
        case = Case(
            collective, self.nranks, order["root"], order["count"], FLOAT, "sum" if collective.reduces else None
        )
        send, recv, send_at, recv_at = make_buffers(case, self.rank, False, Buffer)
        send.put(case.send_data(self.rank), send_at)
        addresses = (send.address + send_at, recv.address + recv_at)
        programs, iters = order["programs"], order["iters"]
        seconds = [[0.0] * len(programs) for _ in range(order["repeats"])]
        for turn, row in enumerate(seconds):
            for i in range(len(programs)):
                at = (i + turn) % len(programs)
                if not self.nccl.lib.collc_force_program(self.comm, programs[at]):
                    raise RunError(f"has no program {programs[at]} for this communicator")
                if iters > 1:
                    self.repeat(case, addresses, 1)
                row[at] = self.repeat(case, addresses, iters) / iters
        return {"seconds": seconds}

    def repeat(self, case: Case, addresses: tuple[int, int], times: int) -> float:
        """The seconds that this many calls take."""
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
                return self.machine()
            case "program":
                return self.program(order)
            case "measure":
                return self.measure(order)
            case _:
                return super().obey(order)


def main() -> None:
    """Answers orders on standard input until it ends."""

    def answer(said: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    serve(Path(sys.argv[1]), map(json.loads, sys.stdin), answer, TunedRank)


if __name__ == "__main__":
    main()
