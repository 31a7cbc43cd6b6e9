"""Readings of a GPU's PCIe lanes count only if they fall wholly into calls."""

from __future__ import annotations

import subprocess
from itertools import pairwise

import pytest
from mock_jobs import HERE
from support.libraries import runtime_program

PERIOD_MS = 5  # of the watcher

Span = tuple[int, int]


def counted(calls: list[Span], looks: list[tuple[int, int, int]], until: int) -> tuple[list[int], str]:
    """How many looks count in a row after each look; what the last one saw.

    Args:
        calls: when they run, in milliseconds; ends excluded.
        looks: when they begin and end, and the lanes that they find, in order; the first one, at creation, finds all.
        until: when the watcher stops.
    """
    lines, taken = [], []
    for now in range(0, until, PERIOD_MS):
        began, _, lanes = [look for look in looks if look[1] <= now][-1]
        lines.append(f"{now} {int(any(first <= now < end for first, end in calls))} {began} {lanes}")
        taken.append(began)
    program = runtime_program(HERE / "lane_looks.cpp", frozenset())
    out = subprocess.run(
        [program], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=60
    ).stdout
    *missing, lately, _, most = out.split()
    last = [int(seen) for (began, after), seen in zip(pairwise([*taken, -1]), missing, strict=True) if began != after]
    return last, f"{lately} of {most}"


def narrow(*spans: Span) -> list[tuple[int, int, int]]:
    return [(0, 0, 16), *((began, end, 8) for began, end in spans)]


EACH_HALF_SECOND = [(at, at + 2) for at in range(500, 2500, 500)]


@pytest.mark.parametrize(
    ("calls", "spans", "wanted"),
    [
        ([(0, 9999)], EACH_HALF_SECOND, [1, 2, 3, 4]),
        ([], EACH_HALF_SECOND, [0] * 4),
        # A call of 5 ms in each 500 ms, before, while or after the idle link is looked at.
        ([(at, at + 5) for at in range(100, 2500, 500)], EACH_HALF_SECOND, [0] * 4),
        ([(at - 10, at) for at in range(500, 2500, 500)], EACH_HALF_SECOND, [0] * 4),
        ([(at + 1, at + 21) for at in range(500, 2500, 500)], EACH_HALF_SECOND, [0] * 4),
        # Calls of 40 ms around each look.
        ([(at - 20, at + 20) for at in range(500, 2500, 500)], EACH_HALF_SECOND, [1, 2, 3, 4]),
        # A look that takes long, with calls before and after and a rest between.
        ([(0, 600), (1500, 9999)], [(500, 1800), (2000, 2002)], [0, 1]),
        # Looks that count, with others between them that do not.
        ([(400, 1100), (2400, 2600)], [(500, 502), (1000, 1002), (1500, 1502), (2500, 2502)], [1, 2, 2, 3]),
        # Looks that lie too far apart are not in a row.
        ([(400, 1100), (3000, 9999)], [(500, 502), (1000, 1002), (3010, 3012), (3500, 3502)], [1, 2, 1, 2]),
    ],
)
def test_looks_count_that_fell_wholly_into_calls(calls: list[Span], spans: list[Span], wanted: list[int]) -> None:
    seen, last = counted(calls, narrow(*spans), spans[-1][1] + 50)
    assert seen[1:] == wanted
    assert last == "8 of 16"


def test_all_lanes_begin_the_count_anew_and_more_than_before_are_all() -> None:
    looks = [(0, 0, 8), (500, 502, 4), (1000, 1002, 16), (1500, 1502, 8), (2000, 2002, 8), (2500, 2502, 16)]
    assert counted([(0, 9999)], looks, 2600) == ([0, 1, 0, 1, 2, 0], "16 of 16")
    assert counted([], looks, 2600) == ([0] * 6, "16 of 16")
