"""Ranks that share cores spread evenly over them, and may use the same ones as before."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from support.libraries import client, run_client, runtime_program

HERE = Path(__file__).parent


def moves(allowed: str, *cores: int) -> list[list[int]]:
    """The cores of all ranks, at first and after every move."""
    program = runtime_program(HERE / "spread.cpp", frozenset())
    done = subprocess.run(
        [str(program), allowed, *map(str, cores)], capture_output=True, text=True, check=True, timeout=60
    )
    return [[int(core) for core in line.split()] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("cores", [[0] * 8, [0, 1, 0, 0, 1, 0, 0, 0], [1, 1, 1, 0, 1, 1, 1, 0]])
def test_eight_ranks_on_two_cores(cores: list[int]) -> None:
    states = moves("0,1", *cores)
    assert sorted(Counter(states[-1]).values()) == [4, 4]
    assert len(states) - 1 == max(Counter(cores).values()) - 4  # nobody moves for nothing


def test_ranks_that_are_even_stay() -> None:
    assert len(moves("0,1", 0, 0, 1)) == 1
    assert len(moves("0,1", 0, 0, 0, 1, 1)) == 1
    assert len(moves("4,7,900", 900, 4, 7, 4)) == 1


def test_no_rank_moves_where_it_may_not() -> None:
    assert len(moves("0", 0, 0, 0, 0)) == 1
    assert {core for state in moves("2,5", 2, 2, 2, 2, 5) for core in state} == {2, 5}
    unknown = 2**32 - 1
    assert moves("0,1", unknown, 0, 0, unknown)[-1] == [unknown, 0, 1, unknown]


def test_many_cores_fill_evenly() -> None:
    assert set(Counter(moves("0,1,2,3", *[2] * 6, *[3] * 6)[-1]).values()) == {3}


@pytest.mark.parametrize("way", ["processes", "threads"])
def test_ranks_that_begin_on_one_core(way: str) -> None:
    run_client([client(HERE / "spread_calls.c", "cores"), way, "3"], ending="1 moves\n")
