"""Finds the fastest program for each size.

Chunk sizes are found by MIAD, plans and crossovers by measured comparisons, and the weights of path classes by their
times (`collc.tune.weights`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collc.collectives.model import Collective
from collc.collectives.sizes import element_count
from collc.tune.candidates import Candidate, embedded, families
from collc.tune.meter import Call, ClassMeter, Meter
from collc.tune.miad import miad
from collc.tune.weights import Times, Weights, alone, balanced

ELEMENT_BYTES = 4
# A multi-path program is measured from this factor below the smallest message that the embedded table uses it for.
BELOW = 16


@dataclass(frozen=True)
class Rules:
    """The rules for replacing a program by another.

    Attributes:
        gain: a chunk size is better if it saves more than this fraction.
        switch: a size keeps the program of the previous size unless another saves more than this fraction.
        doubt: the same fraction if the measurement did not settle.
        bisections: the number of measurements that locate a crossover between two sizes.
    """

    gain: float = 0.01
    switch: float = 0.03
    doubt: float = 0.10
    bisections: int = 2


@dataclass(frozen=True)
class Point:
    """The result for one size.

    Attributes:
        bytes: the size, as nccl-tests counts.
        chosen, embedded: the numbers of the chosen program and of the program of the embedded table.
        weights: the weights of the chosen program's path classes; empty for its own weights, or if it has none.
    """

    bytes: int
    chosen: int
    embedded: int
    chosen_us: float
    embedded_us: float
    settled: bool
    weights: Weights = ()


@dataclass(frozen=True)
class Row:
    """A row of a table: a program and its weights from `min_bytes` on (NCCL's count times the element size)."""

    min_bytes: int
    program: int
    weights: Weights = ()


@dataclass
class Problem:
    """One collective and root with its candidates and meters.

    Attributes:
        root: NCCL's rank of the root; -1 for none.
        candidates: the candidates of this root's rank in the plan.
        classes: the meter of multi-path programs; None to keep their own weights.
    """

    collective: Collective
    root: int
    nranks: int
    candidates: Sequence[Candidate]
    meter: Meter
    rules: Rules = Rules()
    classes: ClassMeter | None = None

    def call(self, size: int) -> Call:
        return Call(self.collective, self.root, element_count(self.collective, size, ELEMENT_BYTES, self.nranks))

    def per_call(self, size: int) -> int:
        """Returns the bytes of a size as tables count them: NCCL's count times the element size."""
        return self.call(size).count * ELEMENT_BYTES

    def times(self, size: int, numbers: Sequence[int]) -> tuple[float, ...]:
        return self.meter.measure(self.call(size), numbers).seconds


@dataclass(frozen=True)
class Weighed:
    """The best weights of a program's path classes, and how much better they are.

    Attributes:
        weights: the weights; empty if the program's embedded weights are the best.
        own: the time of calls with the embedded weights over the time with these.
    """

    weights: Weights
    own: float


def decide(problem: Problem, size: int, before: Candidate | None) -> Point:
    """Returns the best program for a size.

    First, the multi-path program gets its best weights. Then MIAD finds the chunk of every plan, starting from the
    chunk of the previous size if that has the same plan. Then all winners, the program of the previous size and the
    embedded one are measured side by side.

    Args:
        before: the program of the previous size.
    """
    held = embedded(problem.candidates, problem.per_call(size))
    cut = cut_for(problem, size, before)
    candidates = [c for c in problem.candidates if not c.weights or c is cut]
    weighed = Weighed((), 1.0) if cut is None else weigh(problem, size, cut)
    if before is not None and before.weights:
        before = cut
    finalists = [held.number] if before is None else [before.number, held.number]
    for members in families(candidates, problem.per_call(size)):
        by_chunk = {c.chunk_bytes: c.number for c in members}
        start = None
        if before is not None and before.family == members[0].family:
            start = min(by_chunk, key=lambda chunk: (abs(chunk - before.chunk_bytes), chunk))

        def compare(a: int, b: int, by_chunk: dict[int, int] = by_chunk) -> tuple[float, float]:
            first, second = problem.times(size, (by_chunk[a], by_chunk[b]))
            return first, second

        walk = miad(sorted(by_chunk), compare, start=start, gain=problem.rules.gain)
        finalists.append(by_chunk[walk.chunk])
    finalists = distinct(candidates, problem.per_call(size), finalists)
    measured = problem.meter.measure(problem.call(size), finalists)
    times = dict(zip(finalists, measured.seconds, strict=True))
    best = min(finalists, key=lambda number: times[number])
    least = problem.rules.switch if measured.settled else problem.rules.doubt
    # The first finalist is the program of the previous size, or the embedded one.
    if times[finalists[0]] <= times[best] * (1 + least):
        best = finalists[0]
    times.setdefault(held.number, times[finalists[0]])
    embedded_us = times[held.number] * 1e6 * (weighed.own if held is cut else 1)
    weights = weighed.weights if cut is not None and best == cut.number else ()
    return Point(size, best, held.number, times[best] * 1e6, embedded_us, measured.settled, weights)


def cut_for(problem: Problem, size: int, before: Candidate | None) -> Candidate | None:
    """Returns the multi-path program that a size may use, or None. The table has one for each range of sizes."""
    held = embedded(problem.candidates, problem.per_call(size))
    if held.weights:
        return held
    if before is not None and before.weights:
        return before
    first = min((c for c in problem.candidates if c.weights), key=lambda c: c.cut, default=None)
    return first if first is not None and BELOW * problem.per_call(size) >= first.cut else None


def weigh(problem: Problem, size: int, program: Candidate) -> Weighed:
    """Returns the best weights of a program's path classes.

    Balanced weights are compared side by side with the program's own weights and with only the fastest class.
    """
    meter, call = problem.classes, problem.call(size)
    kept = Weighed((), 1.0)
    if meter is None:
        return kept
    meter.use(program.number, ())
    first = meter.class_times(call, program.number, program.weights)
    if first is None:
        return kept

    def timed(weights: Weights) -> Times:
        return meter.class_times(call, program.number, weights) or first

    found = balanced(program.weights, timed)
    choices = list(dict.fromkeys((program.weights, found, alone(program.weights, first))))
    measured = meter.compare(call, program.number, choices)
    best = min(range(len(choices)), key=lambda i: measured.seconds[i])
    own = measured.seconds[0] / measured.seconds[best]
    least = problem.rules.switch if measured.settled else problem.rules.doubt
    if own <= 1 + least:
        return kept
    meter.use(program.number, choices[best])
    return Weighed(choices[best], own)


def distinct(candidates: Sequence[Candidate], size: int, numbers: Sequence[int]) -> list[int]:
    """Returns the programs without those that equal an earlier one because both chunks contain the whole call."""
    by_number = {c.number: c for c in candidates}
    found: dict[object, int] = {}
    for number in numbers:
        c = by_number[number]
        found.setdefault((c.family, min(c.chunk_bytes, size)), number)
    return list(found.values())


def crossover(problem: Problem, low: Point, high: Point) -> int:
    """Returns the bytes of the crossover: above it the program of `high` is faster than the program of `low`."""
    a, b = float(low.bytes), float(high.bytes)
    for _ in range(problem.rules.bisections):
        middle = math.sqrt(a * b)
        old, new = problem.times(round(middle), (low.chosen, high.chosen))
        a, b = (a, middle) if new < old else (middle, b)
    return round(math.sqrt(a * b))


def table(
    problem: Problem,
    sizes: Sequence[int],
    known: dict[int, Point],
    done: Callable[[Point], None],
) -> tuple[list[Row], list[Point]]:
    """Returns the rows of a collective, and its points.

    Args:
        known: points of an earlier run by size, which are not measured again.
        done: is called with every new point.
    """
    by_number = {c.number: c for c in problem.candidates}
    points: list[Point] = []
    before: Candidate | None = None
    for size in sizes:
        point = known.get(size)
        if point is None:
            point = decide(problem, size, before)
            done(point)
        elif problem.classes is not None:
            problem.classes.use(point.chosen, point.weights)
        points.append(point)
        before = by_number[point.chosen]
    weights = {point.chosen: point.weights for point in points}  # each program has the weights of its largest calls
    rows = [Row(0, points[0].chosen)]
    for low, high in itertools.pairwise(points):
        if low.chosen != high.chosen:
            both = by_number[low.chosen].weights and by_number[high.chosen].weights
            least = by_number[high.chosen].cut if both else problem.per_call(crossover(problem, low, high))
            rows.append(Row(max(1, least), high.chosen))
    return [dataclasses.replace(row, weights=weights[row.program]) for row in _ascending(rows)], points


def _ascending(rows: Sequence[Row]) -> list[Row]:
    """Returns rows with ascending sizes. If rounding gives two crossovers the same size, the later one counts."""
    found: list[Row] = []
    for row in rows:
        while found and found[-1].min_bytes >= row.min_bytes:
            found.pop()
        found.append(row if found else Row(0, row.program))
    return found
