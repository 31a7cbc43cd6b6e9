"""Measures programs side by side until their medians settle."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from collc.bench.team import GpuTeam, Team
from collc.collectives.model import Collective
from collc.tune.weights import Times, Weights


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


class ClassMeter(Protocol):
    """The source of measurements of programs that are cut into classes of links."""

    def class_times(self, call: Call, program: int, weights: Weights) -> Times | None:
        """Seconds until each class had done its part; None where the library does not tell."""

    def compare(self, call: Call, program: int, weightings: Sequence[Weights]) -> Measured:
        """As `Meter.measure`, of one program with several weights."""

    def use(self, program: int, weights: Weights) -> None:
        """From now on this program runs with these weights; empty: its own."""


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
    """Measures with the processes of `collc.tune.worker`, or of `collc.tune.gpus`."""

    def __init__(self, team: Team | GpuTeam, guard: Guard, first_program: int) -> None:
        self.team, self.guard, self.first = team, guard, first_program
        self.weights: dict[int, Weights] = {}
        self.unsettled = 0
        self.measurements = 0

    def use(self, program: int, weights: Weights) -> None:
        self.weights[program] = weights

    def measure(self, call: Call, programs: Sequence[int]) -> Measured:
        """Measures the seconds per call of each program, until the medians settle.

        Raises:
            RunError: a rank fails or dies.
        """
        return self._settle(call, [(number, self.weights.get(number, ())) for number in programs])

    def compare(self, call: Call, program: int, weightings: Sequence[Weights]) -> Measured:
        """The same of one program with several weights.

        Raises:
            RunError: a rank fails or dies.
        """
        return self._settle(call, [(program, weights) for weights in weightings])

    def class_times(self, call: Call, program: int, weights: Weights) -> Times | None:
        """Of several calls the median: of each call those of the rank that took least, as it came last and waited for
        nobody.

        Raises:
            RunError: a rank fails or dies.
        """
        order = {**_about(call), "do": "classes", "iters": self.guard.repeats}
        answers = self.team.all({**order, "program": self.first + program, "weights": _packed(weights)})
        if any(answer["times"] is None for answer in answers):
            return None
        calls = [min((answer["times"][i] for answer in answers), key=max) for i in range(self.guard.repeats)]
        return tuple(statistics.median(one[part] for one in calls) for part in range(len(weights)))

    def _settle(self, call: Call, runs: Sequence[tuple[int, Weights]]) -> Measured:
        guard = self.guard
        [once] = self._round(call, runs, 1, 1)
        iters = max(1, min(guard.most_iters, round(guard.batch_seconds / max(min(once), 1e-9))))
        samples: list[list[float]] = []
        before: list[float] | None = None
        self.measurements += 1
        for _ in range(guard.rounds):
            samples += self._round(call, runs, iters, guard.repeats)
            medians = [statistics.median(row[i] for row in samples) for i in range(len(runs))]
            if before and all(
                abs(new - old) <= guard.tolerance * old for new, old in zip(medians, before, strict=True)
            ):
                return Measured(tuple(medians), True)
            before = medians
        self.unsettled += 1
        assert before is not None
        return Measured(tuple(before), False)

    def _round(self, call: Call, runs: Sequence[tuple[int, Weights]], iters: int, repeats: int) -> list[list[float]]:
        """Per repeat the seconds per call of each run, as the mean over ranks, which is bench's time."""
        order = {
            **_about(call),
            "do": "measure",
            "programs": [self.first + number for number, _ in runs],
            "weights": [_packed(weights) for _, weights in runs],
            "iters": iters,
            "repeats": repeats,
        }
        answers = [answer["seconds"] for answer in self.team.all(order)]
        return [
            [statistics.fmean(rank[turn][i] for rank in answers) for i in range(len(runs))] for turn in range(repeats)
        ]


def _about(call: Call) -> dict[str, Any]:
    return {"collective": call.collective.value, "root": call.root, "count": call.count}


def _packed(weights: Weights) -> int:
    """As the runtime has them, a byte of each class (step_program.h); 0: the program's own."""
    return sum(weight << 8 * part for part, weight in enumerate(weights))
