"""Calls that differ: for every ordered pair, whichever rank differs, all learn of both calls and nobody hangs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.libraries import client

HERE = Path(__file__).parent
WAYS = [
    ("odd", "threads", "malloc"),
    ("odd", "processes", "malloc"),
    ("cores", "thread", "malloc"),
    ("cores", "threads", "memalloc"),
    ("cores", "processes", "malloc"),
    ("cores", "processes", "memalloc"),
]
SIZES = ("line", "slot", "direct", "large")


def check(machine: str, ways: str, buffers: str, size: str, stride: int, first: int) -> None:
    program = client(HERE / "mismatch.c", machine)
    command: list[str | Path] = [program, ways, "3", size, buffers, str(stride), str(first)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
    assert done.stdout.endswith("all found\n")
    assert int(done.stdout.split()[0]) > 0


@pytest.mark.parametrize(
    "size", [one if one in ("line", "direct") else pytest.param(one, marks=pytest.mark.slow) for one in SIZES]
)
@pytest.mark.parametrize(("machine", "ways", "buffers"), WAYS)
def test_some_pairs(machine: str, ways: str, buffers: str, size: str) -> None:
    """Every 331st of the 10,431 cases, other ones in each way."""
    first = 4 * WAYS.index((machine, ways, buffers)) + SIZES.index(size)
    check(machine, ways, buffers, size, 331, first)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("machine", "ways", "buffers"), WAYS)
def test_all_pairs(machine: str, ways: str, buffers: str, size: str) -> None:
    check(machine, ways, buffers, size, 1, 0)
