"""Series of bench-peers: what a record keeps, which turns count, and when a machine is too uneven to judge."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of the installed package", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

from peer_runs import (  # noqa: E402
    FAR_NS,
    LINE,
    MOST_SPREAD,
    NEAR_NS,
    PROBES,
    Record,
    Run,
    Turn,
    by_distance,
    cells_of,
    evenness,
    turns,
)

# Modules of benchmarks/ have names of packages of the tests.
sys.path.remove(str(BENCHMARKS))

EVEN = [100.0] * len(PROBES)


def series(rounds: int, disturbed: dict[int, int]) -> list[Run]:
    """Two libraries' runs; `disturbed`: by round the probe that changes between them."""
    runs = []
    for turn in turns(rounds, ["broadcast"], [2]):
        slow = list(EVEN)
        if turn.number in disturbed:
            slow[disturbed[turn.number]] *= 1.1 * MOST_SPREAD
        time = 900.0 if turn.number in disturbed else 10.0 + turn.number
        runs += [Run(turn, "one", [(1024, time)], EVEN), Run(turn, "other", [(1024, time)], slow)]
    return runs


@pytest.mark.parametrize("probe", range(len(PROBES)), ids=PROBES)
def test_turns_disturbed_by_any_probe_do_not_count(probe: int) -> None:
    assert cells_of(series(5, {2: probe, 4: probe}))["one", "broadcast", 2, 1024] == [11.0, 13.0, 15.0]


def test_with_too_few_even_turns_all_count_and_the_page_says_so() -> None:
    runs = series(5, {1: 0, 3: 1, 5: 3})
    assert len(cells_of(runs)["other", "broadcast", 2, 1024]) == 5
    assert "too uneven to judge" in "\n".join(evenness(runs))
    assert "too uneven to judge" not in "\n".join(evenness(series(5, {1: 0})))


def test_a_series_goes_on_where_it_stopped_and_asks_no_library_that_gave_up(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    first, second = list(turns(2, ["broadcast"], [2]))
    record = Record(file, "here", fresh=False)
    record.add(Run(first, "one", [(1024, 1.5)], EVEN))
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


def test_libraries_are_compared_where_the_cores_were_as_far_apart() -> None:
    """Far apart `ours` takes twice the other's time; a comparison over both would say half of it."""

    def run(number: int, peer: str, distance: float, time: float) -> Run:
        worth = [distance if probe == LINE else 100.0 for probe in range(len(PROBES))]
        return Run(Turn(number, "all_reduce", 2), peer, [(1 << 20, time)], worth)

    near, far = NEAR_NS - 1, FAR_NS + 1
    runs = [run(1, "ours", near, 10.0), run(1, "other", near, 20.0), run(2, "ours", near, 999.0)]
    runs += [run(2, "other", far, 50.0), run(3, "ours", far, 100.0), run(3, "other", far, 50.0)]
    page = by_distance(runs, "ours")
    assert "- near: 1 points, geometric mean 0.50, largest 0.50; above 1.1: none" in page
    assert (
        "- far: 1 points, geometric mean 2.00, largest 2.00; above 1.1: all_reduce of 1024 KiB with 2 ranks 2.00"
        in page
    )
    assert by_distance(runs[:2], "ours") == []
