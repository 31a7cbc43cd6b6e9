"""Averages, maxima and minima of floats at the ends of their types, and the rounding of an average's factor."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.libraries import client, library

import collc

HERE = Path(__file__).parent
CALLS = 6 * 3 * 4 * 2  # types, operations, counts, in place or not


@pytest.mark.parametrize("way", ["processes", "threads"])
@pytest.mark.parametrize(("machine", "ranks"), [("pair", 2), ("odd", 3), ("dgx1v", 8)])
def test_the_ends_of_every_type(machine: str, ranks: int, way: str) -> None:
    """Averages do not overflow, a NaN loses to a number, +0 is larger than -0, denormals stay, on every rank."""
    command = [str(client(HERE / "numerics.c", machine)), way, str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{CALLS} calls\n", "")


@pytest.mark.parametrize("count", [5, 70001])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_an_average_multiplies_by_the_rounded_inverse(kind: type[np.floating], count: int) -> None:
    """As NCCL does: 1/3 is rounded to the type, then each product. A division at the end would give other bits."""
    rng = np.random.default_rng(count)
    holder = rng.integers(0, 3, count)
    value = rng.uniform(1, 2, count).astype(kind)
    inputs = [np.where(holder == rank, value, kind(0)) for rank in range(3)]
    product = value * kind(1 / 3)
    assert count < 9 or (product != value / kind(3)).any()
    with collc.Library(library("odd")) as three:
        for result in three.all_reduce(inputs, "avg"):
            assert (result == product).all()
        largest = np.full(count, np.finfo(kind).max)
        assert np.isfinite(three.all_reduce([largest] * 3, "avg")[0]).all()
    assert (collc.Library(library("pair")).all_reduce([largest] * 2, "avg")[1] == largest).all()
