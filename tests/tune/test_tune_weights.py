"""The weights of classes of links: the search on machines that are formulas, then `collc tune` on whole libraries."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from support.libraries import CUTS, client, library

from collc.bench.nccl import Nccl
from collc.checker.library import read_manifest
from collc.collectives.model import Collective
from collc.tune.candidates import Candidate, Offer
from collc.tune.files import State
from collc.tune.meter import Call, Guard, Measured
from collc.tune.run import Tuned, TuneReport, TuneRequest, file_tables, tune
from collc.tune.search import Point, Problem, Row, decide, table
from collc.tune.weights import WHOLE, Times, Weights, alone, balanced, to_weights


class Machine:
    """Classes with a rate and a cost before and after their data; noise makes calls longer, by up to this share."""

    def __init__(self, rates: Sequence[float], costs: Sequence[float], noise: float = 0.0, seed: int = 0) -> None:
        self.rates, self.costs, self.noise, self.random = rates, costs, noise, random.Random(seed)
        self.measured = 0

    def times(self, weights: Weights) -> Times:
        whole = sum(weights)
        return tuple(
            cost + weight / whole / rate if weight else 0.0
            for weight, rate, cost in zip(weights, self.rates, self.costs, strict=True)
        )

    def timed(self, weights: Weights) -> Times:
        self.measured += 1
        return tuple(time * (1 + self.random.uniform(0, self.noise)) for time in self.times(weights))

    def optimum(self) -> float:
        """The least time over all sets of classes: all of a set end together."""
        best = float("inf")
        for chosen in range(1, 1 << len(self.rates)):
            part = [i for i in range(len(self.rates)) if chosen >> i & 1 and self.rates[i]]
            if not part:
                continue
            time = (1 + sum(self.rates[i] * self.costs[i] for i in part)) / sum(self.rates[i] for i in part)
            if all(time > self.costs[i] for i in part):
                best = min(best, time)
        return best


def test_the_search_ends_near_the_optimum() -> None:
    """Whatever the classes can do; within 10% of the optimum, with noise of 2%, in a few measurements."""
    measured = 0
    for seed in range(200):
        drawn = random.Random(seed)
        classes = drawn.choice([2, 3])
        rates = [drawn.uniform(0.1, 1.0) if i < classes else 0.0 for i in range(3)]
        costs = [drawn.uniform(0, 0.1) / sum(rates) for _ in range(3)]
        start = tuple(drawn.randint(1, 255) if rate else 0 for rate in rates)
        machine = Machine(rates, costs, 0.02, seed)
        found = balanced(start, machine.timed)
        assert max(machine.times(found)) <= 1.1 * machine.optimum(), (rates, costs, start, found)
        measured += machine.measured
    assert measured < 8 * 200


def test_classes_that_do_not_pay_are_left_out() -> None:
    """Its cost alone is longer than the whole call over the others."""
    machine = Machine([1.0, 0.2, 0.5], [0.0, 3.0, 0.0])
    found = balanced((100, 50, 50), machine.timed)
    assert found[1] == 0
    assert found[0] == pytest.approx(2 * found[2], rel=0.1)


def test_only_the_first_class_is_left_where_nothing_else_pays() -> None:
    machine = Machine([1.0, 0.2, 0.0], [0.0, 3.0, 0.0])
    assert balanced((100, 100, 0), machine.timed) == (WHOLE, 0, 0)


def test_a_class_that_weighs_nothing_stays_out() -> None:
    machine = Machine([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    assert balanced((200, 50, 0), machine.timed)[2] == 0


def test_steps_are_halved_where_classes_take_turns_in_being_slowest() -> None:
    """A machine on which whoever carries more than half is ten times as slow: full steps would swing for ever."""

    def timed(weights: Weights) -> Times:
        asked.append(weights)
        share = weights[0] / sum(weights)
        return (share * (10 if share > 0.5 else 1), (1 - share) * (10 if share < 0.5 else 1), 0.0)

    asked: list[Weights] = []
    balanced((200, 50, 0), timed)
    moved = [abs(a[0] - b[0]) for a, b in itertools.pairwise(asked)]
    assert moved[-1] <= 2 < moved[0]


def test_the_fastest_class_alone_is_told_by_rates() -> None:
    assert alone((100, 100, 50), (1.0, 0.5, 1.0)) == (0, WHOLE, 0)
    assert to_weights((0.999, 0.001, 0.0)) == (250, 1, 0)


class Formula:
    """A meter of programs of two classes. Programs that are not cut take only the time of the first class."""

    def __init__(self, candidates: Sequence[Candidate], machine: Machine, tells: bool = True) -> None:
        self.by_number = {c.number: c for c in candidates}
        self.machine, self.tells = machine, tells
        self.used: dict[int, Weights] = {}

    def seconds(self, number: int, weights: Weights) -> float:
        own = self.by_number[number].weights
        return max(self.machine.times(weights or own or (1, 0, 0)))

    def measure(self, call: Call, programs: Sequence[int]) -> Measured:
        return Measured(tuple(self.seconds(n, self.used.get(n, ())) for n in programs), True)

    def compare(self, call: Call, program: int, weightings: Sequence[Weights]) -> Measured:
        return Measured(tuple(self.seconds(program, weights) for weights in weightings), True)

    def class_times(self, call: Call, program: int, weights: Weights) -> Times | None:
        return self.machine.timed(weights) if self.tells else None

    def use(self, program: int, weights: Weights) -> None:
        self.used[program] = weights


M = 1 << 20
TABLE = [
    Candidate(0, Collective.ALL_REDUCE, None, "trees", "Simple", 64 << 10, 4, 0, 0),
    Candidate(1, Collective.ALL_REDUCE, None, "trees", "Simple", 64 << 10, 6, 0, M, (90, 10, 0)),
    Candidate(2, Collective.ALL_REDUCE, None, "trees", "Simple", 64 << 10, 6, 0, 4 * M, (80, 20, 0)),
]


def problem(machine: Machine, tells: bool = True) -> Problem:
    meter = Formula(TABLE, machine, tells)
    return Problem(Collective.ALL_REDUCE, -1, 4, TABLE, meter, classes=meter)


def test_every_range_of_sizes_gets_weights_of_its_own() -> None:
    rows, points = table(problem(Machine([1.0, 1.0, 0.0], [0.0, 0.0, 0.0])), [M, 4 * M, 16 * M], {}, lambda point: None)
    assert [(row.min_bytes, row.program) for row in rows] == [(0, 1), (4 * M, 2)]
    for row in rows:
        assert row.weights[0] == pytest.approx(row.weights[1], rel=0.1)
    assert [point.embedded for point in points] == [1, 2, 2]
    for point, own in zip(points, (0.9, 0.8, 0.8), strict=True):
        assert point.embedded_us / point.chosen_us == pytest.approx(own / 0.5, rel=0.06)


def test_weights_may_cut_smaller_calls_than_the_library_does() -> None:
    """From a sixteenth of the size on; below, nothing is tried."""
    asked = problem(Machine([1.0, 1.0, 0.0], [0.0, 0.0, 0.0]))
    assert decide(asked, M // 16, None).chosen == 1
    assert decide(asked, M // 32, None).chosen == 0


def test_the_fastest_class_alone_wins_where_the_other_only_hinders() -> None:
    point = decide(problem(Machine([1.0, 0.05, 0.0], [0.0, 2.0, 0.0])), 4 * M, None)
    assert (point.chosen, point.weights) == (2, (WHOLE, 0, 0))


@pytest.mark.parametrize("tells", [True, False])
def test_good_weights_stay_as_they_are(tells: bool) -> None:
    point = decide(problem(Machine([0.8, 0.2, 0.0], [0.0, 0.0, 0.0]), tells), 4 * M, None)
    assert (point.chosen, point.weights) == (2, ())


RUNTIME = Path(__file__).parent.parent / "runtime"
SPEEDS = "nvlink:40,pcie:160,net:40"
HASTY = Guard(batch_seconds=0.0, repeats=3, rounds=2, most_iters=1)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> TuneReport:
    """All classes are memory, throttled to speeds that make the library's weights (5:2:1) far from the best."""
    output = tmp_path_factory.mktemp("tune") / "joint.tuning"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLC_DIRECT", "0")
        patch.setenv("COLLC_THROTTLE", SPEEDS)
        asked = TuneRequest(
            library("joint"), output, (Collective.ALL_GATHER,), min_bytes=2 * M, max_bytes=2 * M, guard=HASTY
        )
        return tune(asked)


def test_what_was_measured_is_near_the_speeds(tuned: TuneReport) -> None:
    (row,) = tuned.tuned[0].rows
    nvlink, pcie, net = (weight / sum(row.weights) for weight in row.weights)
    assert pcie > 2 * CUTS[1].weights["pcie"] / 8  # 0.25 in the library, 0.67 by the speeds
    assert pcie > nvlink
    assert pcie > net
    (point,) = tuned.tuned[0].points
    assert point.embedded_us > 1.5 * point.chosen_us


def bits(tuning: Path | None, settings: Mapping[str, str], weights: str | None = None) -> str:
    """Returns the bits of sums of floats, which depend on the trees that carried them."""
    command = [str(client(RUNTIME / "bits.c", "joint")), "processes", "4"]
    given = {name: value for name, value in os.environ.items() if name not in {"COLLC_TUNING", "COLLC_WEIGHTS"}}
    given |= dict(settings) | ({"COLLC_TUNING": str(tuning)} if tuning else {})
    given |= {"COLLC_WEIGHTS": weights} if weights else {}
    done = subprocess.run(command, capture_output=True, text=True, env=given, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


@cache
def head() -> list[str]:
    lib = Nccl(library("joint")).lib
    lib.collc_machine.restype = ctypes.c_char_p
    build = read_manifest(library("joint"))["build_id"]
    return ["collc-tuning/1", f"library {build}", f"machine {lib.collc_machine().decode()}"]


def all_reduces() -> list[int]:
    programs = read_manifest(library("joint"))["allocations"][0]["programs"]
    return [i for i, program in enumerate(programs) if program["collective"] == "all_reduce"]


def test_a_communicator_begins_with_the_weights_of_its_file(tmp_path: Path) -> None:
    small, large = all_reduces()
    file = tmp_path / "x.tuning"
    rows = ["table 0 all_reduce -", f"0 {small} nvlink:10,pcie:200", f"{16 << 10} {large} nvlink:10,pcie:200"]
    file.write_text("\n".join([*head(), *rows, "end 2", ""]))
    wanted = bits(None, {}, "nvlink:10,pcie:200,net:0")
    assert wanted != bits(None, {})
    for settings in ({}, {"COLLC_BALANCE": "1"}):
        assert bits(file, settings) == wanted
    assert bits(file, {}, "nvlink:1") == bits(None, {}, "nvlink:1")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("net:1", "expected weights of classes that the program is cut into"),  # the program for small calls has none
        ("nvlink:0", "expected weights of classes that the program is cut into"),
        ("nvlink:256", "expected weights of classes that the program is cut into"),
        ("random:3", "expected weights of classes that the program is cut into"),
        ("nvlink:1,nvlink:2", "expected weights of classes that the program is cut into"),
        ("nvlink:1 more", "expected bytes and a program"),
    ],
)
def test_wrong_weights_of_a_file_are_refused(tmp_path: Path, word: str, why: str) -> None:
    file = tmp_path / "x.tuning"
    file.write_text("\n".join([*head(), "table 0 all_reduce -", f"0 {all_reduces()[0]} {word}", "end 1", ""]))
    done = subprocess.run(
        [str(client(RUNTIME / "bits.c", "joint")), "threads", "4"],
        capture_output=True, text=True, check=True, timeout=60, env={**os.environ, "COLLC_TUNING": str(file)},
    )  # fmt: skip
    assert why in done.stderr


def test_a_program_with_two_weightings_is_refused(tmp_path: Path) -> None:
    first, second = all_reduces()
    file = tmp_path / "x.tuning"
    rows = [f"0 {first} nvlink:1", f"4096 {second}", f"8192 {first} nvlink:2"]
    file.write_text("\n".join([*head(), "table 0 all_reduce -", *rows, "end 3", ""]))
    done = subprocess.run(
        [str(client(RUNTIME / "bits.c", "joint")), "threads", "4"],
        capture_output=True, text=True, check=True, timeout=60, env={**os.environ, "COLLC_TUNING": str(file)},
    )  # fmt: skip
    assert "expected one weighting of each program" in done.stderr


def test_what_was_tuned_is_faster_than_the_library_s_own(tuned: TuneReport) -> None:
    """The same calls with and without the file, on classes of the same speeds."""
    settings = {"COLLC_DIRECT": "0", "COLLC_THROTTLE": SPEEDS}
    took = []
    for tuning in ({}, {"COLLC_TUNING": str(tuned.output)}):
        command = [str(client(RUNTIME / "balance.c", "joint")), "processes", "4", "allgather", str(1 << 17), "5"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, **settings, **tuning}
        )
        took.append(min(float(line.split()[0]) for line in done.stdout.splitlines()))
    assert took[1] < 0.7 * took[0]


def test_the_state_of_an_interrupted_run_keeps_weights(tmp_path: Path) -> None:
    state = State(tmp_path / "x.tuning", {"library": "x"})
    state.add("all_gather", Point(M, 1, 0, 1.0, 2.0, True, (200, 50, 0)))
    again = State(tmp_path / "x.tuning", {"library": "x"})
    assert again.load() == 1
    assert again.points == state.points


def test_every_row_of_a_file_is_one_that_the_library_has(tuned: TuneReport) -> None:
    programs = read_manifest(library("joint"))["allocations"][0]["programs"]
    rows: list[Row] = list(tuned.tuned[0].rows)
    assert all(programs[row.program]["collective"] == "all_gather" for row in rows)
    assert all(len(row.weights) == 3 for row in rows)


def test_roots_whose_trees_differ_in_number_keep_their_weights() -> None:
    """A program that is cut has all shares of its trees as its spread; each root's own one stands in its table."""

    def one(number: int, root: int, spread: int, cut: bool) -> Candidate:
        least, weights = (1 << 20, (3, 1, 0)) if cut else (0, ())
        return Candidate(number, Collective.BROADCAST, root, "trees", "Simple", 1 << 16, 8, spread, least, weights)

    first, second = (one(0, 0, 8, False), one(1, 0, 29, True)), (one(2, 1, 8, False), one(3, 1, 30, True))
    found = Tuned(Collective.BROADCAST, (), (Row(0, 0), Row(1 << 20, 1, (200, 50, 0))), first)
    tables = file_tables(Offer(0, 0, 2, first + second), found)
    assert [(row.min_bytes, row.program, row.weights) for made in tables for row in made.rows] == [
        (0, 0, ()), (1 << 20, 1, (200, 50, 0)), (0, 2, ()), (1 << 20, 3, (200, 50, 0)),
    ]  # fmt: skip
