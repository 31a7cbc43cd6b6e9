"""A C program that knows only nccl.h, against host libraries."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.libraries import client

SOURCE = Path(__file__).parent / "client.c"


@pytest.mark.parametrize("ways", ["thread", "threads", "processes"])
@pytest.mark.parametrize(("machine", "ranks"), [("pair", 2), ("odd", 3), ("dgx1v", 8)])
def test_every_element_of_every_call(machine: str, ranks: int, ways: str) -> None:
    done = subprocess.run(
        [client(SOURCE, machine), ways, str(ranks)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("elements right\n")
    assert int(done.stdout.split()[0]) > 1_000_000


def test_one_rank_needs_no_plan() -> None:
    done = subprocess.run(
        [client(SOURCE, "odd"), "thread", "1"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 1_000_000


@pytest.mark.parametrize("ways", ["thread", "processes"])
def test_another_number_of_ranks_is_refused(ways: str) -> None:
    done = subprocess.run([client(SOURCE, "odd"), ways, "2"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "compiled for 3 ranks, the communicator has 2" in done.stderr
