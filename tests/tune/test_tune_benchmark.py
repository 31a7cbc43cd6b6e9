"""The script behind docs/data/tune.yaml: it counts what it says, and runs on a real library."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.tunable import tunable

from collc.checker.library import read_manifest
from collc.collectives.model import Collective
from collc.tune.candidates import read_offers
from collc.tune.meter import Guard
from collc.tune.run import Tuned
from collc.tune.search import Row

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "tune.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    if not SCRIPT.is_file():
        pytest.skip("benchmarks/ is not part of the installed package")
    spec = importlib.util.spec_from_file_location("tune_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        spec.loader.exec_module(module)
    return module


def test_the_page_counts_sizes_within_ten_percent(script: ModuleType) -> None:
    def one(chosen: float, embedded: float, settled: bool = True) -> Any:
        return script.Check(2, "all_reduce", 1024, "a", chosen, "b", 100.0, embedded, settled)

    text = script.page([one(100, 300), one(110, 110), one(111, 100), one(250, 400, False)], 0.5)
    assert "| 2, all_reduce | 4 | 50% | 50% | 3 | 67% |" in text
    assert "| 2, all | 4 | 50% | 50% | 3 | 67% |" in text
    assert "| 2, all_reduce | 1K | a | 250.00 | b | 100.00 | 400.00 ? |" in text


def test_every_candidate_is_measured_beside_the_chosen_one(script: ModuleType) -> None:
    offer = read_offers(read_manifest(tunable()))[0]
    candidates = offer.of(Collective.ALL_REDUCE, None)
    rows = (Row(0, candidates[1].number), Row(40000, candidates[-1].number))
    found = Tuned(Collective.ALL_REDUCE, (), rows, tuple(candidates))
    hasty = Guard(batch_seconds=0.0, repeats=1, rounds=1, most_iters=1)
    small, large = script.check(tunable(), 3, found, [4096, 1 << 16], hasty)
    assert small.chosen == found.label(candidates[1].number)
    assert large.chosen == found.label(candidates[-1].number)
    for check in (small, large):
        assert 0 < check.best_us <= min(check.chosen_us, check.embedded_us)
        assert not check.settled


def test_the_topology_is_one_memory(script: ModuleType, tmp_path: Path) -> None:
    from collc.topology.graph import plan_graph
    from collc.topology.load import load_topology

    graph = plan_graph(load_topology(str(script.topology(tmp_path, 4))))
    assert graph.nranks == 4
    assert {link.kind.value for link in graph.links} == {"c2c"}
