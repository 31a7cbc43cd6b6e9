"""Where ranks share cores, slots of a FIFO exchange their parts: no chunk is stored over one that has not been read."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.libraries import client, run_client, runtime_program

SOURCE = Path(__file__).parent / "slot_order.cpp"


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 5])
def test_every_state_of_a_fifo(slots: int) -> None:
    command = [str(runtime_program(SOURCE, frozenset())), str(slots)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= slots


@contextmanager
def one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.parametrize(
    ("ways", "ranks", "machine"), [("processes", 3, "cores"), ("threads", 3, "cores"), ("processes", 2, "pair")]
)
def test_chunks_of_all_sizes_between_ranks_that_share_a_core(ways: str, ranks: int, machine: str) -> None:
    """Late ranks let the others run ahead until all slots are full. All data pass through slots."""
    command: list[str | Path] = [client(SOURCE.with_name("small.c"), machine), ways, str(ranks), "150", "mixed"]
    with one_core():
        done = run_client(command, settings={"COLLC_DIRECT": "0"})
    assert int(done.stdout.split()[0]) > 1_000_000
