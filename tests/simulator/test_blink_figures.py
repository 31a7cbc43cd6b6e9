"""The script behind docs/reproduced/blink-plans.md: what it prints holds where it can be checked by other means."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from collc.collectives.model import Collective
from collc.simulator.generations import MACHINES

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "blink.py"
K, M = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def blink() -> ModuleType:
    if not SCRIPT.is_file():
        pytest.skip("benchmarks/ is not part of the installed package")
    spec = importlib.util.spec_from_file_location("blink_figures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_means(blink: ModuleType) -> None:
    assert blink.mean([1.0, 4.0]) == pytest.approx(2.0)
    assert blink.fraction("600/7") == pytest.approx(600 / 7)
    assert blink.fraction("3") == 3


def test_figure_12_ends_at_the_best_chunk_with_few_trials(blink: ModuleType) -> None:
    [row] = cells(blink.figure_12(MACHINES["generic"], [4 * M]))
    assert int(row[3]) < 16
    assert float(row[4].split(",")[1].strip(" %")) <= 1.0


def test_small_chunks_and_large_ones_lose(blink: ModuleType) -> None:
    [row] = cells(blink.chunks_in_the_model(MACHINES["generic"], [4 * K, 128 * K, 512 * K], [16 * M]))
    small, middle, large = map(float, row[1:])
    assert small < middle > large


def test_one_hop_trees_win_small_calls(blink: ModuleType) -> None:
    [row] = cells(blink.one_hop(MACHINES["generic"], Collective.ALL_REDUCE, [K]))
    trees, one_hop, double, ring = map(float, row[1:5])
    assert trees == one_hop < double < ring
    assert float(row[5]) == pytest.approx(double / trees, abs=0.01)
    assert float(row[5]) > 1.5
    assert float(row[6]) > 3
