"""Measures programs side by side until their medians settle."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from collc.bench.team import Team
from collc.collectives.model import Collective


@dataclass(frozen=True)
class Call:
    """A call to measure: NCCL's count of float32 elements, the root as NCCL ranks (-1: none)."""

    collective: Collective
    root: int
    count: int


@dataclass(frozen=True)
class Measured:
    """Seconds per call in the order of the programs; `settled` is false where the noise guard gave up."""

    seconds: tuple[float, ...]
    settled: bool


class Meter(Protocol):
    """The source of measurements for the search; tests use a model."""

    def measure(self, call: Call, programs: Sequence[int]) -> Measured: ...


@dataclass(frozen=True)
class Guard:
    """When a measurement is believed.

    Args:
        batch_seconds: least time of the calls that are timed together.
        repeats: batches of each program per round.
        tolerance: the medians of all rounds may differ by this share from those without the last round.
        rounds: the maximum; after these the medians are used as they are.
    """

    batch_seconds: float = 0.005
    repeats: int = 5
    tolerance: float = 0.01
    rounds: int = 10
    most_iters: int = 1000


class TeamMeter:
    """Measures with the processes of `collc.tune.worker`."""

    def __init__(self, team: Team, guard: Guard, first_program: int) -> None:
        self.team, self.guard, self.first = team, guard, first_program
        self.unsettled = 0
        self.measurements = 0

    def measure(self, call: Call, programs: Sequence[int]) -> Measured:
        """Measures the seconds per call of each program, until the medians settle.

        Raises:
            RunError: a rank fails or dies.
        """
        guard = self.guard
        [once] = self._round(call, programs, 1, 1)
        iters = max(1, min(guard.most_iters, round(guard.batch_seconds / max(min(once), 1e-9))))
        samples: list[list[float]] = []
        before: list[float] | None = None
        self.measurements += 1
        for _ in range(guard.rounds):
            samples += self._round(call, programs, iters, guard.repeats)
            medians = [statistics.median(row[i] for row in samples) for i in range(len(programs))]
            if before and all(
                abs(new - old) <= guard.tolerance * old for new, old in zip(medians, before, strict=True)
            ):
                return Measured(tuple(medians), True)
            before = medians
        self.unsettled += 1
        assert before is not None
        return Measured(tuple(before), False)

    def _round(self, call: Call, programs: Sequence[int], iters: int, repeats: int) -> list[list[float]]:
        """Per repeat the seconds per call of each program, as the mean over ranks, which is bench's time."""
        order = {
            "do": "measure",
            "collective": call.collective.value,
            "root": call.root,
            "count": call.count,
            "programs": [self.first + number for number in programs],
            "iters": iters,
            "repeats": repeats,
        }
        answers = [answer["seconds"] for answer in self.team.all(order)]
        return [
            [statistics.fmean(rank[turn][i] for rank in answers) for i in range(len(programs))]
            for turn in range(repeats)
        ]
