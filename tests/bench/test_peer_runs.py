"""Series of bench-peers: what a record keeps, which turns count, and when a machine is too uneven to judge."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of the installed package", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

from distance import EVERY, FAR_NS, NEAR_NS, Distance, Watch, state, timed  # noqa: E402
from peer_page import report  # noqa: E402
from peer_runs import (  # noqa: E402
    HOPELESS,
    LEAST,
    MOST_SPREAD,
    OURS,
    PROBES,
    Record,
    Run,
    Turn,
    cells_of,
    evenness,
    is_judged,
    ratios,
    turns,
)

# Modules of benchmarks/ have names of packages of the tests.
sys.path.remove(str(BENCHMARKS))

EVEN = [100.0] * len(PROBES)
PAIR = ((OURS, 10.0), ("other", 20.0))


def series(rounds: int, disturbed: dict[int, int]) -> list[Run]:
    """Two libraries' runs; `disturbed`: by round the probe that changes between them."""
    runs = []
    for turn in turns(rounds, ["broadcast"], [2]):
        slow = list(EVEN)
        if turn.number in disturbed:
            slow[disturbed[turn.number]] *= 1.1 * MOST_SPREAD
        time = 900.0 if turn.number in disturbed else 10.0 + turn.number
        runs += [Run(turn, "one", [(1024, time, "near")], EVEN), Run(turn, "other", [(1024, time, "near")], slow)]
    return runs


@pytest.mark.parametrize("probe", range(len(PROBES)), ids=PROBES)
def test_turns_disturbed_by_any_probe_do_not_count(probe: int) -> None:
    assert cells_of(series(5, {2: probe, 4: probe}), "near")["one", "broadcast", 2, 1024] == [11.0, 13.0, 15.0]


def test_with_too_few_even_turns_all_count_and_the_page_says_so() -> None:
    runs = series(5, {1: 0, 3: 1, 5: 2})
    assert len(cells_of(runs, "near")["other", "broadcast", 2, 1024]) == 5
    assert "3 of 5 turns saw one of three probes change" in "\n".join(evenness(runs))
    assert "nor do 1 disturbed turns" in "\n".join(evenness(series(5, {1: 0})))


@pytest.mark.parametrize(("last", "judges"), [(1.1, True), (1.2, False)])
def test_rounds_that_differ_judge_nothing(last: float, judges: bool) -> None:
    factors = [*[1.0] * LEAST, last]
    runs = [run(n, peer, "near", time * (factors[n] if peer == OURS else 1)) for n in range(4) for peer, time in PAIR]
    said = "\n".join(evenness(runs))
    assert f"Geometric means of single rounds, cores near: 0.50, 0.50, 0.50, {last / 2:.2f}." in said
    assert ("too uneven to judge" not in said) == judges


def test_a_series_goes_on_where_it_stopped_and_asks_no_library_that_gave_up(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    first, second = list(turns(2, ["broadcast"], [2]))
    record = Record(file, "here", fresh=False)
    record.add(Run(first, "one", [(1024, 1.5, "far")], EVEN))
    record.add(Run(first, "slow", [], EVEN, "took too long", gave_up=True))
    again = Record(file, "here", fresh=False)
    assert again.runs == record.runs
    assert not again.lacks(first, "one")
    assert again.lacks(second, "one")
    assert not again.lacks(second, "slow")
    assert again.lacks(Turn(2, "broadcast", 4), "slow")
    with pytest.raises(SystemExit, match="another series"):
        Record(file, "elsewhere", fresh=False)
    assert Record(file, "elsewhere", fresh=True).runs == []


def run(number: int, peer: str, at: Distance, time: float) -> Run:
    return Run(Turn(number, "all_reduce", 2), peer, [(1 << 20, time, at)], EVEN)


def test_libraries_are_compared_where_the_cores_were_as_far_apart() -> None:
    """Far apart ours takes twice the other's time; a comparison over both would say half of it."""
    place = ("all_reduce", 2, 1 << 20)
    near = [run(n, peer, "near", time) for n in range(LEAST) for peer, time in PAIR]
    far = [run(n, peer, "far", time) for n in range(9, 9 + LEAST) for peer, time in ((OURS, 100.0), ("other", 50.0))]
    runs = [*near, *far, run(20, OURS, "moved", 999.0), run(20, "other", "near", 1.0)]
    assert ratios(runs, "near") == {place: (0.5, "other")}
    assert ratios(runs, "far") == {place: (2.0, "other")}
    page, found = report({OURS: "1", "other": "2"}, runs, "x.svg")
    assert found == [0.5]
    assert "Cores near: against the best peer at each of 1 points a geometric mean of the time ratios\nof 0.50" in page
    assert "100 (2.00, other)" in page
    assert "Of 14 times 7 were measured with the cores near each other, 6 far apart, and 1" in page


def test_a_point_is_judged_by_every_library_or_not_at_all() -> None:
    """The one that lacks a time may be the best one."""
    runs = [run(n, peer, "near", 10.0) for n in range(LEAST) for peer in (OURS, "other")]
    runs += [run(n, "third", "far", 1.0) for n in range(LEAST)]
    assert ratios(runs, "near") == {}
    assert not is_judged(runs, "all_reduce", 2)
    assert "too uneven to judge" in "\n".join(evenness(runs))
    assert [turn.number for turn in turns(LEAST, ["all_reduce"], [2], runs)] == [1, 2, 3, 4, 5, 6]
    runs += [run(LEAST, "third", "near", 5.0), run(LEAST + 1, "third", "near", 2.0)]  # too few for a median
    assert ratios(runs, "near") == {("all_reduce", 2, 1 << 20): (5.0, "third")}
    assert [turn.number for turn in turns(LEAST, ["all_reduce"], [2], runs)] == [1, 2, 3]


def test_a_library_that_cannot_be_the_best_is_not_asked_again(tmp_path: Path) -> None:
    record = Record(tmp_path / "runs.jsonl", "here", fresh=True)
    for number in range(LEAST):
        assert record.lacks(Turn(LEAST, "all_reduce", 2), "slow")
        for peer, us in ((OURS, 90.0), ("other", 10.0), ("twice", 10.0 * HOPELESS), ("slow", 10.1 * HOPELESS)):
            record.add(run(number, peer, "far", us))
    turn = Turn(LEAST, "all_reduce", 2)
    assert [peer for peer in (OURS, "other", "twice", "slow") if record.lacks(turn, peer)] == [OURS, "other", "twice"]
    assert record.lacks(Turn(LEAST, "all_reduce", 4), "slow")


def test_cores_are_watched(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    with Watch(tmp_path) as watch:
        begin = time.monotonic()
        time.sleep(25 * EVERY)
        said = watch.between(begin, time.monotonic())
        assert watch.seen >= 5
        assert said in ("near", "far", "moved")
    assert state([NEAR_NS - 1.0] * 3) == "near"
    assert state([FAR_NS + 1.0] * 3) == "far"
    assert state([NEAR_NS - 1.0, FAR_NS + 1.0]) == "moved"
    assert state([]) == "near"


def test_lines_of_peerbench() -> None:
    good = "x,broadcast,2,1024,1.500,1.0,2.0,9,ok,12.5000,12.7500"
    found = timed(f"noise\n{good}\n{good.replace('ok', 'WRONG')}\n")
    assert [(row.size, row.microseconds, row.begin, row.end, row.right) for row in found] == [
        (1024, 1.5, 12.5, 12.75, True),
        (1024, 1.5, 12.5, 12.75, False),
    ]
