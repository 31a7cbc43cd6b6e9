"""A root finds out whether large broadcasts go through slots or the kernel copies them, and again when that changes."""

from __future__ import annotations

import os
import subprocess
from itertools import product
from pathlib import Path

import pytest
from support.libraries import client, runtime_program
from support.ranks import REMOTE_ERROR

HERE = Path(__file__).parent
MB = 1 << 20
CALLS = 4000
COSTS = (80, 100, 150, 300)  # ticks per KiB
SIZES = (2 * MB, 16 * MB, 600 * MB)
free_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores")


def run(first: int, *phases: tuple[int, int, int, int]) -> list[list[int]]:
    """A row for each phase of CALLS, BYTES, SLOTS, KERNEL."""
    words = [f"{calls}:{size}:{slots},{kernel}" for calls, size, slots, kernel in phases]
    command = [str(runtime_program(HERE / "pull_ways.cpp", frozenset())), str(first), "7", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def near_the_better(spent: int, slots: int, kernel: int) -> bool:
    nearly = max(slots, kernel) <= 1.2 * min(slots, kernel)
    return spent <= (1.12 if nearly else 1.05) * min(slots, kernel)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("first", [0, 1])
def test_any_costs_are_found_and_kept(first: int, size: int) -> None:
    """The cost of trials is included. A choice that is nearly as good may stay."""
    for slots, kernel in product(COSTS, repeat=2):
        ((*row, _),) = run(first, (CALLS, size, slots, kernel))
        assert near_the_better(*row), (slots, kernel, row)


@pytest.mark.parametrize("size", SIZES)
def test_any_costs_are_found_after_any_others(size: int) -> None:
    pairs = list(product(COSTS, repeat=2))
    for before, after in product(pairs, repeat=2):
        first, second = (CALLS, size, before[0], before[1]), (CALLS, size, after[0], after[1])
        _, (spent, slots, kernel, _) = run(0, first, second)
        late = 0.5 * abs(slots - kernel)  # the other way may have been too dear to be tried often
        assert near_the_better(int(spent - late), slots, kernel), (before, after, spent)


@pytest.mark.parametrize("length", [1, 2, 40])
def test_sizes_are_learnt_apart(length: int) -> None:
    """Large broadcasts are faster by the kernel, smaller ones through slots; some of the one, then of the other."""
    turns = [(16 * MB, 150, 80), (2 * MB, 80, 150)] * (2000 // length)
    rows = run(0, *((length, size, slots, kernel) for size, slots, kernel in turns))
    assert sum(row[3] for row in rows[::2]) >= 0.95 * 2000
    assert sum(row[3] for row in rows[1::2]) <= 0.05 * 2000


@pytest.mark.parametrize("first", [0, 1])
def test_a_way_of_which_nothing_is_known_is_tried_ever_more_seldom(first: int) -> None:
    """As with a reader that is not of this version, or gets its chunks otherwise."""
    (*_, early), (*_, late) = run(first, *[(CALLS, 2 * MB, 100 * (first == 0), 100 * (first == 1))] * 2)
    assert abs(early - first * CALLS) <= 0.01 * CALLS
    assert abs(late - first * CALLS) <= 0.003 * CALLS


def call(ranks: int, roots: int, sizes: tuple[int, ...], way: str, **settings: str) -> subprocess.CompletedProcess[str]:
    library = "twin" if ranks == 2 else "cores"
    words = [str(client(HERE / "pulls.c", library)), way, str(ranks), str(roots), ",".join(map(str, sizes))]
    environment = {**os.environ, **settings}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=300)


def pulls(ranks: int, roots: int, sizes: tuple[int, ...], way: str = "processes", **settings: str) -> list[float]:
    """Returns for each size the part of the last half of the calls that the kernel copied."""
    done = call(ranks, roots, sizes, way, **settings)
    assert done.returncode == 0, done.stderr
    rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    return [copied / received for copied, received in rows]


@pytest.fixture(scope="module")
def kernel_copies() -> bool:
    """Returns whether this system lets the kernel copy between processes."""
    return pulls(2, 1, (2 * MB,), PULLS_SLOW="slots") != [0]


@free_cores
@pytest.mark.parametrize("roots", [1, 2])
@pytest.mark.parametrize("slow", ["kernel", "slots"])
def test_processes_learn_the_faster_way(kernel_copies: bool, roots: int, slow: str) -> None:
    if not kernel_copies:
        pytest.skip("the kernel copies nothing here")
    shares = pulls(2, roots, (2 * MB, 5 * MB + 12), PULLS_SLOW=slow)
    assert min(shares) >= 0.8 if slow == "slots" else max(shares) <= 0.2


@free_cores
@pytest.mark.parametrize("ranks", [2, 3])
def test_where_the_kernel_may_not_copy_slots_carry_all(ranks: int) -> None:
    assert pulls(ranks, ranks, (2 * MB,), PULLS_REFUSE="1") == [0]
    assert pulls(ranks, ranks, (2 * MB,), COLLC_DIRECT="0") == [0]


@free_cores
@pytest.mark.parametrize("slow", ["kernel", "slots"])
def test_several_readers_get_what_was_sent_either_way(kernel_copies: bool, slow: str) -> None:
    if not kernel_copies:
        pytest.skip("the kernel copies nothing here")
    (share,) = pulls(3, 3, (2 * MB + 4,), PULLS_SLOW=slow)
    assert share >= 0.8 if slow == "slots" else share <= 0.2


@free_cores
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("killed", ["root", "reader"])
def test_a_process_that_is_killed_in_a_copy_ends_the_call_of_the_others(
    kernel_copies: bool, ranks: int, killed: str
) -> None:
    if not kernel_copies:
        pytest.skip("the kernel copies nothing here")
    done = call(ranks, ranks, (2 * MB,), "processes", PULLS_KILL=killed)
    # Both readers may have begun; then the root is killed, or each of them.
    results = [int(line) for line in done.stdout.splitlines()]
    assert 1 <= len(results) < ranks, done.stderr
    assert set(results) == {REMOTE_ERROR}


@free_cores
def test_threads_read_where_it_stands() -> None:
    assert pulls(2, 2, (2 * MB,), "threads") == [0]


@free_cores
def test_smaller_broadcasts_are_left_to_the_thresholds() -> None:
    assert pulls(2, 2, (2 * MB - 4, 256 << 10), PULLS_SLOW="slots", COLLC_CACHE="/nonexistent") == [0, 0]
