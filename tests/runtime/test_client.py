"""A C program that knows only nccl.h, against host libraries."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.libraries import client, run_client

SOURCE = Path(__file__).parent / "client.c"


RUNS = [
    # Eight ranks as processes, which have the most ways for data; as threads they are slow ones.
    pytest.param(machine, ranks, ways, direct, marks=[pytest.mark.slow] * (ranks == 8 and ways != "processes"))
    for machine, ranks, direct in (
        ("pair", 2, "1"),
        ("odd", 3, "1"),
        ("cores", 3, "1"),
        ("cores", 3, "0"),
        ("dgx1v", 8, "1"),
    )
    for ways in ("thread", "threads", "processes")
]


@pytest.mark.parametrize(("machine", "ranks", "ways", "direct"), RUNS)
@pytest.mark.slow_for("dgx1v-8-processes-1")
def test_every_element_of_every_call(machine: str, ranks: int, ways: str, direct: str) -> None:
    done = run_client([client(SOURCE, machine), ways, str(ranks)], settings={"COLLC_DIRECT": direct})
    assert int(done.stdout.split()[0]) > 1_000_000


@pytest.mark.parametrize("ways", ["threads", "processes"])
def test_the_kernel_copies_several_chunks_at_a_time(ways: str) -> None:
    done = run_client([client(SOURCE.with_name("ahead.c"), "cores"), ways, "3"])
    assert int(done.stdout.split()[0]) == 3 * 12 * (3 + 1) * 300_007


@pytest.mark.parametrize(("machine", "ranks"), [("pair", 2), ("cores", 3)])
@pytest.mark.parametrize(("ways", "direct"), [("processes", "1"), ("threads", "0")])
def test_small_calls_of_changing_roots_with_ranks_that_are_late(
    machine: str, ranks: int, ways: str, direct: str
) -> None:
    command: list[str | Path] = [client(SOURCE.with_name("small.c"), machine), ways, str(ranks), "2000"]
    assert int(run_client(command, settings={"COLLC_DIRECT": direct}).stdout.split()[0]) > 1_000_000


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
