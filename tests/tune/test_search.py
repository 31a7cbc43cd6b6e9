"""The search on machines whose times are formulas: it chooses the best there, and crossovers lie where they do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from collc.collectives.model import Collective
from collc.tune.candidates import Candidate, embedded, families
from collc.tune.meter import Call, Measured
from collc.tune.search import Point, Problem, crossover, decide, table

K, M = 1 << 10, 1 << 20
CHUNKS = (8 * K, 16 * K, 32 * K, 64 * K, 128 * K)


def held(collective: Collective = Collective.ALL_REDUCE) -> list[Candidate]:
    """Trees, in the table with 128K chunks, and two kinds for tuning."""
    made = [Candidate(0, collective, None, "trees", "Simple", 128 * K, 4, 0, 0)]
    for plan in ("trees", "rings", "one-hop"):
        for chunk in CHUNKS:
            if (plan, chunk) != ("trees", 128 * K):
                made.append(Candidate(len(made), collective, None, plan, "Simple", chunk, 4, 0, None))
    return made


class Formula:
    """A meter that answers from a formula of (candidate, bytes)."""

    def __init__(self, candidates: Sequence[Candidate], seconds: Callable[[Candidate, int], float]) -> None:
        self.by_number = {c.number: c for c in candidates}
        self.seconds = seconds
        self.calls: list[tuple[int, tuple[int, ...]]] = []

    def measure(self, call: Call, programs: Sequence[int]) -> Measured:
        self.calls.append((call.count * 4, tuple(programs)))
        return Measured(tuple(self.seconds(self.by_number[n], call.count * 4) for n in programs), True)


def pipeline(candidate: Candidate, size: float) -> float:
    """A start that one-hop has least of, bytes that rings move fastest, a step per chunk and a chunk to fill."""
    start, speed = {"trees": (8e-6, 8e9), "rings": (20e-6, 16e9), "one-hop": (2e-6, 4e9)}[candidate.plan]
    chunk = min(candidate.chunk_bytes, max(size, 1))
    return start + size / speed + size / chunk * 1e-7 + chunk / 4e9


def problem(
    seconds: Callable[[Candidate, int], float] = pipeline, collective: Collective = Collective.ALL_REDUCE
) -> Problem:
    candidates = held(collective)
    return Problem(collective, -1, 4, candidates, Formula(candidates, seconds))


SIZES = [K << (2 * i) for i in range(8)]


@pytest.mark.parametrize("size", SIZES)
def test_every_size_gets_the_best_within_the_rules(size: int) -> None:
    asked = problem()
    point = decide(asked, size, None)
    times = {c.number: pipeline(c, size) for c in asked.candidates}
    assert point.chosen_us <= min(times.values()) * 1.031 * 1e6
    assert point.chosen_us == times[point.chosen] * 1e6
    assert (point.embedded, point.embedded_us) == (0, times[0] * 1e6)


def test_a_table_follows_the_sizes_and_places_its_crossovers() -> None:
    asked = problem()
    rows, points = table(asked, SIZES, {}, lambda point: None)
    by_number = {c.number: c for c in asked.candidates}
    plans = [by_number[row.program].plan for row in rows]
    assert plans[0] == "one-hop"
    assert plans[-1] == "rings"
    assert rows[0].min_bytes == 0
    assert [row.min_bytes for row in rows] == sorted({row.min_bytes for row in rows})
    for low, high in itertools.pairwise(points):
        if low.chosen == high.chosen:
            continue
        # Two bisections of a factor of four leave a factor of 1.42 around the true crossover, if there is one.
        at = crossover(asked, low, high)
        old, new = by_number[low.chosen], by_number[high.chosen]
        assert pipeline(new, at * 1.5) < pipeline(old, at * 1.5) or at * 1.5 > high.bytes
        assert pipeline(old, at / 1.5) < pipeline(new, at / 1.5) or at / 1.5 < low.bytes


def test_a_small_gain_changes_nothing() -> None:
    def almost(candidate: Candidate, size: int) -> float:
        return 1.0 if candidate.number == 0 else 0.98

    rows, points = table(problem(almost), SIZES, {}, lambda point: None)
    assert [row.program for row in rows] == [0]
    assert all(point.chosen == 0 for point in points)


def test_known_points_are_not_measured_again() -> None:
    asked = problem()
    told: list[Point] = []
    _, points = table(asked, SIZES, {}, told.append)
    assert told == points
    again = problem()
    rows, repeated = table(again, SIZES, {p.bytes: p for p in points[:5]}, told.append)
    assert repeated == points
    assert told[len(points) :] == points[5:]
    meter = again.meter
    assert isinstance(meter, Formula)
    assert all(len(programs) == 2 or size >= SIZES[5] for size, programs in meter.calls)
    assert rows[0].min_bytes == 0


def test_per_rank_collectives_count_bytes_per_rank() -> None:
    asked = problem(collective=Collective.ALL_GATHER)
    assert asked.per_call(64 * K) == 16 * K
    assert asked.call(64 * K).count == 4 * K
    rows, _ = table(asked, SIZES, {}, lambda point: None)
    assert max(row.min_bytes for row in rows) <= SIZES[-1] // 4


def test_chunks_that_hold_a_whole_call_are_one_program() -> None:
    candidates = held()
    assert [len(members) for members in families(candidates, K)] == [1, 1, 1]
    assert [[c.chunk_bytes for c in members] for members in families(candidates, 20 * K)] == [
        [8 * K, 16 * K, 32 * K]
    ] * 3
    assert [[c.chunk_bytes for c in members] for members in families(candidates, M)] == [list(CHUNKS)] * 3


def test_the_embedded_table() -> None:
    rows = [
        Candidate(0, Collective.REDUCE, 1, "trees", "Simple", 64, 1, 0, 0),
        Candidate(1, Collective.REDUCE, 1, "rings", "Simple", 64, 1, 0, 4096),
        Candidate(2, Collective.REDUCE, 1, "rings", "Simple", 32, 1, 0, None),
    ]
    assert [embedded(rows, size).number for size in (0, 4095, 4096, 1 << 40)] == [0, 0, 1, 1]


def test_what_does_the_same_is_not_compared() -> None:
    """A chunk that holds the whole call does as well as any larger one: noise must not choose between them."""
    asked = problem(lambda candidate, size: 1.0 / (1 + candidate.number))
    point = decide(asked, K, None)
    meter = asked.meter
    assert isinstance(meter, Formula)
    by_number = meter.by_number
    assert sorted(by_number[n].plan for n in meter.calls[-1][1]) == ["one-hop", "rings", "trees"]
    assert by_number[point.chosen].plan == "one-hop"


def test_in_doubt_the_program_before_stays() -> None:
    class Restless(Formula):
        def measure(self, call: Call, programs: Sequence[int]) -> Measured:
            return Measured(super().measure(call, programs).seconds, False)

    def faster_rings(gain: float, candidate: Candidate, size: int) -> float:
        return 1.0 - (gain if candidate.plan == "rings" else 0.0)

    candidates = held()
    for gain, changes in ((0.05, False), (0.2, True)):
        meter = Restless(candidates, partial(faster_rings, gain))
        point = decide(Problem(Collective.ALL_REDUCE, -1, 4, candidates, meter), K, candidates[0])
        assert (point.chosen != 0) == changes
        assert not point.settled
