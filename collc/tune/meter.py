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
    """A call to measure: NCCL's count of float32 elements, and NCCL's rank of the root (-1: none)."""

    collective: Collective
    root: int
    count: int


@dataclass(frozen=True)
class Measured:
    """The seconds per call in the order of the programs. `settled` is False if the medians did not settle."""

    seconds: tuple[float, ...]
    settled: bool


class Meter(Protocol):
    """The source of measurements for the search. Tests use a model."""

    def measure(self, call: Call, programs: Sequence[int]) -> Measured: ...


class ClassMeter(Protocol):
    """The source of measurements of multi-path programs."""

    def class_times(self, call: Call, program: int, weights: Weights) -> Times | None:
        """Returns the seconds until each path class had finished; None if the library does not measure it."""

    def compare(self, call: Call, program: int, weightings: Sequence[Weights]) -> Measured:
        """Measures one program with several weights, like `Meter.measure`."""

    def use(self, program: int, weights: Weights) -> None:
        """Sets the weights of a program for later measurements; empty for its own weights."""


@dataclass(frozen=True)
class Guard:
    """The rules that decide whether a measurement is settled.

    Attributes:
        batch_seconds: the least time of the calls that are timed together.
        repeats: the number of batches of each program per round.
        tolerance: the largest relative change of the medians by the last round.
        rounds: the most rounds; after these the medians are used as they are.
        most_iters: the most calls that are timed together.
    """

    batch_seconds: float = 0.005
    repeats: int = 5
    tolerance: float = 0.01
    rounds: int = 10
    most_iters: int = 1000


class TeamMeter:
    """Measures with the processes of `collc.tune.worker` or `collc.tune.gpus`."""

    def __init__(self, team: Team | GpuTeam, guard: Guard, first_program: int) -> None:
        self.team, self.guard, self.first = team, guard, first_program
        self.weights: dict[int, Weights] = {}
        self.unsettled = 0
        self.measurements = 0

    def use(self, program: int, weights: Weights) -> None:
        self.weights[program] = weights

    def measure(self, call: Call, programs: Sequence[int]) -> Measured:
        """Returns the seconds per call of each program, measured until the medians settle.

        Raises:
            RunError: a rank failed or died.
        """
        return self._settle(call, [(number, self.weights.get(number, ())) for number in programs])

    def compare(self, call: Call, program: int, weightings: Sequence[Weights]) -> Measured:
        """Returns the seconds per call of one program with several weights, like `measure`.

        Raises:
            RunError: a rank failed or died.
        """
        return self._settle(call, [(program, weights) for weights in weightings])

    def class_times(self, call: Call, program: int, weights: Weights) -> Times | None:
        """Returns the seconds until each path class had finished, as the median over several calls.

        A call's times are taken from its fastest rank, because this rank came last and did not wait for others.

        Raises:
            RunError: a rank failed or died.
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
        """Returns for each repeat the seconds per call of each run, as the mean over ranks, like bench."""
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
    """Returns weights as the runtime packs them, a byte for each class (step_program.h); 0 for the program's own."""
    return sum(weight << 8 * part for part, weight in enumerate(weights))
