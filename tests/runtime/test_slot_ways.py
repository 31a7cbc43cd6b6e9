"""The writer of a FIFO finds out which way its chunks go best, and again when that changes."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import pytest
from support.libraries import runtime_program

SOURCE = Path(__file__).parent / "slot_ways.cpp"
CHUNKS = 20_000
COSTS = (40, 100, 250, 600)  # ticks per KiB, as a near cache, memory and a far cache have them


Costs = tuple[int, ...]  # IN, OUT, PAST_IN, PAST_OUT


def run(first: int, slots: int, *phases: Costs | None, chunks: int = CHUNKS) -> list[list[int]]:
    """A row for each phase; None: all begins anew."""
    words = ["new" if costs is None else f"{chunks}:{','.join(map(str, costs))}" for costs in phases]
    command = [str(runtime_program(SOURCE, frozenset())), str(first), str(slots), "7", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


EVERY = list(product(COSTS, repeat=4))


@pytest.mark.parametrize("slots", [2, 4, 8])
@pytest.mark.parametrize("first", [0, 1])
def test_any_costs_are_within_a_twentieth_of_the_better_way(first: int, slots: int) -> None:
    """Once they have been found; what is nearly as good may stay."""
    rows = run(first, slots, *(phase for costs in EVERY for phase in (None, costs, costs)))
    for costs, (spent, plain, past, _) in zip(EVERY, rows[1::2], strict=True):
        nearly = max(plain, past) <= 1.2 * min(plain, past)
        assert spent <= (1.12 if nearly else 1.05) * min(plain, past), costs


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_any_costs_are_found_after_any_others(slots: int) -> None:
    """Within 4,500 chunks, also where only the way that is not used has changed."""
    changes = [EVERY[i * 37 % len(EVERY)] for i in range(4 * len(EVERY))]
    rows = run(0, slots, *changes)
    for costs, (spent, plain, past, _) in zip(changes, rows, strict=True):
        late = 4500 / CHUNKS * abs(plain - past)
        nearly = max(plain, past) <= 1.2 * min(plain, past)
        assert spent <= (1.12 if nearly else 1.05) * min(plain, past) + late, costs


def test_what_is_dear_is_tried_seldom() -> None:
    far, near = (100, 600, 100, 90), (20, 20, 150, 90)
    for costs, better in [(far, "past"), (near, "plain")]:
        (_, (spent, plain, past, went_past)) = run(0, 4, costs, costs)
        assert spent <= 1.02 * min(plain, past)
        assert went_past > 0.99 * CHUNKS if better == "past" else 0 < went_past < 0.01 * CHUNKS


@pytest.mark.parametrize("first", [0, 1])
def test_a_reader_that_learns_nothing_leaves_the_way_as_it_was(first: int) -> None:
    ((*_, early), (*_, late)) = run(first, 4, (100, 0, 100, 0), (100, 0, 100, 0))
    assert abs(early - first * CHUNKS) <= 0.01 * CHUNKS
    assert abs(late - first * CHUNKS) <= 0.001 * CHUNKS


def test_a_change_is_found_within_a_few_hundred_chunks() -> None:
    far, near = (100, 600, 100, 90), (20, 20, 150, 90)
    rows = run(0, 4, near, far, near, far, chunks=5000)
    assert [past > 4000 for *_, past in rows] == [False, True, False, True]
    assert run(0, 4, near, far, chunks=600)[1][3] > 300
