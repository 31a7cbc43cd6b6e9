"""Series of bench-beside: the lines of a run, when a point is judged, and which library judges it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of the installed package", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

from beside import LEAST, Pass, Round, Series, report, rounds_of, summary, verdicts, wanted  # noqa: E402
from distance import Distance, Watch  # noqa: E402
from peers import Peer  # noqa: E402

sys.path.remove(str(BENCHMARKS))

PLACE = ("broadcast", 2, 1024)


class Told(Watch):
    """Says that the cores were far apart from second 10 on."""

    def __init__(self) -> None:
        pass

    def between(self, begin: float, end: float) -> Distance:
        return "near" if end < 10 else "far" if begin > 10 else "moved"


def passes(ratios: dict[str, list[list[float]]], at: Distance = "near") -> list[Pass]:
    """The ratios of all rounds, by library and pass."""
    return [
        Pass(number, peer, 2, [Round("broadcast", 1024, 10.0, 10.0 / ratio, at) for ratio in rounds])
        for peer, runs in ratios.items()
        for number, rounds in enumerate(runs, 1)
    ]


def peer(name: str, most: int = 8) -> Peer:
    return Peer(name, "1.0", Path(name), [], most=most)


def test_lines_of_a_run() -> None:
    printed = "noise\nx,broadcast,2,1024,2.0,4.0,ok,1.0,2.0\nx,broadcast,2,1024,3.0,2.0,WRONG,9.0,11.0\n"
    rounds, note = rounds_of(printed, Told())
    assert rounds == [Round("broadcast", 1024, 2.0, 4.0, "near"), Round("broadcast", 1024, 3.0, 2.0, "moved")]
    assert note == "WRONG: broadcast of 1024 bytes"


def test_the_worst_ratio_counts_and_each_pass_is_told() -> None:
    runs = passes({"slow": [[0.5] * LEAST], "fast": [[1.0] * 3, [1.4] * 4]})
    found = verdicts(runs)[PLACE]
    assert (found.peer, found.ratio, found.by_pass) == ("fast", 1.4, [1.0, 1.4])
    assert found.others == {"slow": 0.5, "fast": 1.4}
    assert summary({PLACE: found}, "near").endswith("largest 1.40, 1 above 1.3, 1 above 1.1.")
    assert verdicts(runs, ["far"]) == {}


@pytest.mark.parametrize(
    ("ratios", "judged"),
    [([0.5] * LEAST, True), ([0.5] * (LEAST - 1), False), ([0.3] * 3, True), ([0.3] * 2, False)],
    ids=["enough", "too few", "far behind", "far behind twice"],
)
def test_a_point_needs_rounds_of_every_library(ratios: list[float], judged: bool) -> None:
    """But of one that is far behind few are enough: its run ends early."""
    assert (PLACE in verdicts(passes({"other": [[1.0] * LEAST], "this": [ratios]}))) == judged


def test_who_is_far_behind_anywhere_is_not_waited_for() -> None:
    runs = [*passes({"one": [[1.0] * LEAST]}), *passes({"two": [[0.3] * 3]}, "far")]
    assert verdicts(runs)[PLACE].others == {"one": 1.0}


def test_the_worse_distance_counts_where_it_has_rounds() -> None:
    near, moved = passes({"one": [[1.0] * LEAST]}), passes({"one": [[2.0] * 3 * LEAST]}, "moved")
    assert verdicts([*near, *moved])[PLACE].ratio == 1.0
    assert verdicts([*near, *passes({"one": [[2.0] * (LEAST - 1)]}, "far")])[PLACE].ratio == 1.0
    worse = verdicts([*near, *passes({"one": [[2.0] * LEAST]}, "far")])[PLACE]
    assert (worse.ratio, worse.at, worse.by_pass) == (2.0, "far", [2.0])


def test_a_series_goes_on_where_it_stopped(tmp_path: Path) -> None:
    libraries = [peer("one"), peer("two", most=2)]
    series = Series(tmp_path / "runs", "this", False)
    every = [(number, ranks, found.name) for number, ranks, found in wanted(libraries, 2, series.passes)]
    assert every == [(n, r, name) for n in (1, 2) for r, name in [(2, "one"), (2, "two"), (4, "one"), (8, "one")]]
    (one,) = passes({"one": [[1.0] * LEAST]})
    series.add(one)
    again = Series(tmp_path / "runs", "this", False)
    assert again.passes == [one]
    assert [(n, r, p.name) for n, r, p in wanted(libraries, 2, again.passes)] == every[1:]
    with pytest.raises(SystemExit, match="another series"):
        Series(tmp_path / "runs", "that", False)
    assert Series(tmp_path / "runs", "that", True).passes == []


def test_a_page() -> None:
    runs = [*passes({"one": [[1.2] * LEAST]}), Pass(1, "two", 4, [], "took more than 240 s")]
    page = report([peer("collc"), peer("one"), peer("two")], runs, "a processor")
    assert "- broadcast of 1 KiB with 2 ranks: 1.20 of one, near; by pass 1.20" in page
    assert "| broadcast | 2 | 1.20 one, near, 10 us | - | - | - | - |" in page
    assert "| one | 1 | 1.20 | 1.20 |" in page
    assert f"Of {LEAST} rounds {LEAST} were near and 0 far." in page
    assert page.endswith("- two with 4 ranks took more than 240 s\n")
