"""Which program for which size: chunk sizes by MIAD, plans and crossovers by measured comparison."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collc.collectives.model import Collective
from collc.collectives.sizes import element_count
from collc.tune.candidates import Candidate, embedded, families
from collc.tune.meter import Call, Meter
from collc.tune.miad import miad

ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Rules:
    """When one program replaces another.

    Args:
        gain: a chunk size is better if it saves more than this share.
        switch: a size keeps the program of the size before it unless another saves more than this share.
        doubt: the same where the measurement did not settle.
        bisections: measurements that place a crossover between two sizes.
    """

    gain: float = 0.01
    switch: float = 0.03
    doubt: float = 0.10
    bisections: int = 2


@dataclass(frozen=True)
class Point:
    """The result for one size: nccl-tests' bytes, the program chosen, and its time and the embedded one's."""

    bytes: int
    chosen: int
    embedded: int
    chosen_us: float
    embedded_us: float
    settled: bool


@dataclass(frozen=True)
class Row:
    """One row of a table: from `min_bytes` of NCCL's count times the element size on, this program."""

    min_bytes: int
    program: int


@dataclass
class Problem:
    """One collective and root: its candidates, and how to measure them.

    `root` is NCCL's number, -1 for none; `candidates` are those of the plan rank that it is.
    """

    collective: Collective
    root: int
    nranks: int
    candidates: Sequence[Candidate]
    meter: Meter
    rules: Rules = Rules()

    def call(self, size: int) -> Call:
        return Call(self.collective, self.root, element_count(self.collective, size, ELEMENT_BYTES, self.nranks))

    def per_call(self, size: int) -> int:
        """Bytes as the tables count them: NCCL's count times the element size."""
        return self.call(size).count * ELEMENT_BYTES

    def times(self, size: int, numbers: Sequence[int]) -> tuple[float, ...]:
        return self.meter.measure(self.call(size), numbers).seconds


def decide(problem: Problem, size: int, before: Candidate | None) -> Point:
    """The program for a size.

    MIAD finds the chunk of every plan, from the chunk of the size before where that is the same plan; then all winners,
    the program of the size before and the embedded one run side by side.
    """
    held = embedded(problem.candidates, problem.per_call(size))
    finalists = [held.number] if before is None else [before.number, held.number]
    for members in families(problem.candidates, problem.per_call(size)):
        by_chunk = {c.chunk_bytes: c.number for c in members}
        start = None
        if before is not None and before.family == members[0].family:
            start = min(by_chunk, key=lambda chunk: (abs(chunk - before.chunk_bytes), chunk))

        def compare(a: int, b: int, by_chunk: dict[int, int] = by_chunk) -> tuple[float, float]:
            first, second = problem.times(size, (by_chunk[a], by_chunk[b]))
            return first, second

        walk = miad(sorted(by_chunk), compare, start=start, gain=problem.rules.gain)
        finalists.append(by_chunk[walk.chunk])
    finalists = distinct(problem.candidates, problem.per_call(size), finalists)
    measured = problem.meter.measure(problem.call(size), finalists)
    times = dict(zip(finalists, measured.seconds, strict=True))
    best = min(finalists, key=lambda number: times[number])
    least = problem.rules.switch if measured.settled else problem.rules.doubt
    # What leads the list is the program of the size before, or the embedded one.
    if times[finalists[0]] <= times[best] * (1 + least):
        best = finalists[0]
    times.setdefault(held.number, times[finalists[0]])
    return Point(size, best, held.number, times[best] * 1e6, times[held.number] * 1e6, measured.settled)


def distinct(candidates: Sequence[Candidate], size: int, numbers: Sequence[int]) -> list[int]:
    """The programs without those that equal an earlier one at this size, as their chunks contain the whole call."""
    by_number = {c.number: c for c in candidates}
    found: dict[object, int] = {}
    for number in numbers:
        c = by_number[number]
        found.setdefault((c.family, min(c.chunk_bytes, size)), number)
    return list(found.values())


def crossover(problem: Problem, low: Point, high: Point) -> int:
    """The bytes from which on `high`'s program is the faster one, between two sizes of which each has its own."""
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
    """The rows of a collective and what was measured.

    Args:
        known: points of an earlier run by size; they are not measured again.
        done: told every new point.
    """
    by_number = {c.number: c for c in problem.candidates}
    points: list[Point] = []
    before: Candidate | None = None
    for size in sizes:
        point = known.get(size)
        if point is None:
            point = decide(problem, size, before)
            done(point)
        points.append(point)
        before = by_number[point.chosen]
    rows = [Row(0, points[0].chosen)]
    for low, high in itertools.pairwise(points):
        if low.chosen != high.chosen:
            rows.append(Row(max(1, problem.per_call(crossover(problem, low, high))), high.chosen))
    return _ascending(rows), points


def _ascending(rows: Sequence[Row]) -> list[Row]:
    """Rows whose sizes grow: of two crossovers that rounding put at one size the later one counts."""
    found: list[Row] = []
    for row in rows:
        while found and found[-1].min_bytes >= row.min_bytes:
            found.pop()
        found.append(row if found else Row(0, row.program))
    return found
