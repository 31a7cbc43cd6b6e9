"""Cores that are near or far apart have separate thresholds, and ranks that measure different distances agree."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest
from support.libraries import client, library, runtime_program
from support.ranks import SUCCESS, Ranks

from collc.tune.machine import Thresholds, machine_text, tune_machine

HERE = Path(__file__).parent
NEVER = Thresholds(*[None] * len(fields(Thresholds)))
EVERYWHERE = replace(NEVER, sums_everywhere=1 << 13, sums_everywhere_end=1 << 18, kernel_copied_chunks=1 << 13)
HALVES = replace(NEVER, kernel_sums=1, kernel_copied_chunks=1)
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores")


NEAR, FAR, OWN = 45, 145, 2  # nanoseconds of a load, beyond one of the own cache


def concluded(*loads: int) -> list[str]:
    program = runtime_program(HERE / "distance.cpp", frozenset())
    command = [str(program), *map(str, loads)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_cores_are_far_while_every_load_that_tells_something_takes_long() -> None:
    assert concluded(*[FAR] * 6) == ["near"] * 3 + ["far"] * 3
    # One that takes less ends it; one that waits for something else begins nothing.
    assert concluded(*[FAR] * 4, NEAR, *[FAR] * 4)[4:] == ["near"] * 4 + ["far"]
    assert set(concluded(*[NEAR, FAR, FAR, FAR] * 8)) == {"near"}


@pytest.mark.parametrize("every", [1, 2, 3, 5, 8])
def test_lines_that_came_by_themselves_tell_nothing(every: int) -> None:
    loads = [OWN if i % (every + 1) == every else FAR for i in range(60)]
    assert set(concluded(*loads)[12:]) == {"far"}
    near = [NEAR if load == FAR else load for load in loads]
    assert concluded(*loads, *near)[-40:] == ["near"] * 40


def test_ranks_that_share_a_cache_are_near() -> None:
    assert concluded(*[FAR] * 4, *[OWN] * 5)[3:] == ["far"] * 4 + ["near"] * 2


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tune_machine(library("twin"), tmp_path_factory.mktemp("machine") / "machine.txt").machine


def lines_of(
    machine: str, folder: Path, what: str, near: Thresholds, far: Thresholds, **settings: str
) -> tuple[str, list[int]]:
    """The hash of all results, and how many bytes the kernel copied: for each line of the program, and in all."""
    file = folder / "thresholds.txt"
    file.write_text(machine_text(machine, platform.release(), {}, {"near": near, "far": far}))
    command = [str(client(HERE / "sums.c", "twin")), "processes", what]
    environment = {**os.environ, "COLLC_MACHINE": str(file), **settings}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, [int(line.split()[1]) for line in done.stderr.splitlines()]


def run(machine: str, folder: Path, what: str, near: Thresholds, far: Thresholds, **settings: str) -> tuple[str, int]:
    hashed, copied = lines_of(machine, folder, what, near, far, **settings)
    return hashed, copied[-1]


@pytest.fixture(scope="module")
def by_slots(machine: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hashes of all results without copies by the kernel."""
    return run(machine, tmp_path_factory.mktemp("slots"), "all", NEVER, NEVER)[0]


@pytest.mark.slow
def test_thresholds_of_the_distance_count(machine: str, tmp_path: Path) -> None:
    expected, copies = run(machine, tmp_path, "borders", NEVER, NEVER)
    assert copies == 0
    everywhere = run(machine, tmp_path, "borders", EVERYWHERE, EVERYWHERE)
    if everywhere[1] == 0:
        pytest.skip("the kernel copies nothing here")
    for near, far in ((NEVER, EVERYWHERE), (NEVER, HALVES), (EVERYWHERE, NEVER), (HALVES, NEVER)):
        found = {where: run(machine, tmp_path, "borders", near, far, COLLC_CORES=where) for where in ("near", "far")}
        assert {hashed for hashed, _ in found.values()} == {expected}
        assert found["near" if far == NEVER else "far"][1] > 0
        assert found["far" if far == NEVER else "near"][1] == 0
        if far == EVERYWHERE:  # from the first call on
            assert found["far"][1] == everywhere[1]


@pytest.mark.parametrize("far", [EVERYWHERE, HALVES], ids=["everywhere", "halves"])
@pytest.mark.slow_for("everywhere", "halves")
def test_ranks_that_find_it_out_at_different_times_compute_the_same(
    machine: str, tmp_path: Path, far: Thresholds, by_slots: str
) -> None:
    always = run(machine, tmp_path, "all", far, far)
    turns = run(machine, tmp_path, "all", NEVER, far, SUMS_TURNS="1")
    assert (always[0], turns[0]) == (by_slots, by_slots)
    if always[1] == 0:
        pytest.skip("the kernel copies nothing here")
    assert 0 < turns[1] < always[1]


def test_small_calls_between_large_ones_hide_no_distance(machine: str, tmp_path: Path) -> None:
    """Any number of small calls may come between: ranks measure every n-th of the large calls."""
    expected, never = lines_of(machine, tmp_path, "mixed", NEVER, NEVER)
    always = lines_of(machine, tmp_path, "mixed", EVERYWHERE, EVERYWHERE)
    turns = lines_of(machine, tmp_path, "mixed", NEVER, EVERYWHERE, SUMS_TURNS="1")
    assert (always[0], turns[0]) == (expected, expected)
    if always[1][-1] == 0:
        pytest.skip("the kernel copies nothing here")
    assert set(never) == {0}
    assert all(0 < some < each for some, each in zip(turns[1], always[1], strict=True)), (turns[1], always[1])


def test_largest_and_smallest_of_nan_and_zeros_do_not_follow_the_cores(
    machine: str, tmp_path: Path, by_slots: str
) -> None:
    """The program in which every rank reduces adds the two ranks in another order than the program of halves."""
    expected, _ = run(machine, tmp_path, "all", NEVER, NEVER, SUMS_STRANGE="1")
    assert expected != by_slots
    for where in ({"SUMS_TURNS": "1"}, {"COLLC_CORES": "far"}):
        assert run(machine, tmp_path, "all", NEVER, EVERYWHERE, SUMS_STRANGE="1", **where)[0] == expected, where


def test_anything_else_is_refused_on_every_rank() -> None:
    team = Ranks(library("twin"), 2, {}, own={1: {"COLLC_CORES": "elsewhere"}})
    try:
        answers = team.init()
        assert all(answer["result"] != SUCCESS for answer in answers)
        assert "COLLC_CORES=elsewhere is not near, far or a number of loads" in answers[1]["text"]
    finally:
        team.close()
