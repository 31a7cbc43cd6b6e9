"""Runs all ranks of a tuning run on GPUs, in one process: the ranks of bench, which also run chosen programs in turn.

`collc.bench.team` runs it as ``python -m collc.tune.gpus LIBRARY``. One thread makes the calls of all ranks in a group,
so the measured time includes the CPU time of all ranks. It is the same for all programs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from collc.bench.data import Case
from collc.bench.gpus import GpuBuffer, Place, Ranks, serve
from collc.bench.worker import answer_line, make_buffers
from collc.errors import RunError
from collc.tune.worker import case_of, class_times, declare, machine_of, program_of, take_turns


class TunedRanks(Ranks):
    """Ranks whose programs can be chosen."""

    def __init__(self, library: Path) -> None:
        super().__init__(library)
        declare(self.nccl, library)

    def measure(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """Measures programs like `collc.tune.worker.TunedRank.measure`."""
        with self.data(order) as (case, places):

            def repeat(times: int) -> float:
                start = time.perf_counter()
                self.call(times, case, places)
                return time.perf_counter() - start

            seconds = take_turns(order, self.force, repeat)
        return [{"seconds": seconds} for _ in self.comms]

    def classes(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """Measures path classes like `collc.tune.worker.TunedRank.classes`, by the clock of each rank's GPU."""
        times: list[list[list[float] | None]] = [[] for _ in self.comms]
        with self.data(order) as (case, places):
            self.force(order["program"], order["weights"])
            self.call(1, case, places)
            for _ in range(order["iters"]):
                self.call(1, case, places)
                for told, comm in zip(times, self.comms, strict=True):
                    told.append(class_times(self.nccl.lib, comm))
        return [{"times": None if None in told else told} for told in times]

    @contextmanager
    def data(self, order: dict[str, Any]) -> Iterator[tuple[Case, list[Place]]]:
        """Yields the call of an order, and its buffers with data on every GPU."""
        case = case_of(order, len(self.comms))
        places = [
            make_buffers(case, rank, False, partial(GpuBuffer, self.driver, device, lender=self.lender))
            for rank, device in enumerate(self.devices)
        ]
        try:
            for rank, (send, _, send_at, _) in enumerate(places):
                send.put(case.send_data(rank), send_at)
                send.upload()
            yield case, places
        finally:
            for send, recv, _, _ in places:
                send.release()
                recv.release()

    def force(self, program: int, weights: int) -> None:
        lib = self.nccl.lib
        for comm in self.comms:
            if not (lib.collc_force_program(comm, program) and lib.collc_force_weights(comm, weights)):
                raise RunError(f"has no program {program} for this communicator")

    def obey(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        match order["do"]:
            case "machine":
                return [machine_of(self.nccl) for _ in self.comms]
            case "program":
                return [program_of(self.nccl, comm, order) for comm in self.comms]
            case "measure":
                return self.measure(order)
            case "classes":
                return self.classes(order)
            case _:
                return super().obey(order)


def main() -> None:
    """Executes the orders from standard input until it ends."""
    serve(Path(sys.argv[1]), map(json.loads, sys.stdin), answer_line, TunedRanks)


if __name__ == "__main__":
    main()
