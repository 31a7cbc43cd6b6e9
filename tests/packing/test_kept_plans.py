"""Solutions are kept for the next process. A kept solution is checked like a file from a stranger."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from graphs import cluster, dgx1, graph, lacking, nic_links
from second_opinion import random_graph

from collc.build.plans import SolutionCache
from collc.packing import Collective, Plan, plan, solve
from collc.packing.check import check_packing
from collc.packing.solvers.exact import Solution
from collc.pipeline import Recorder, pack
from collc.topology.model import PlanGraph

C = Collective
ODD = cluster([4, 4, 4])
MACHINES = [dgx1(), random_graph(7, 6), lacking(ODD, links=nic_links(ODD, 1))]


class Memory:
    """A store in memory that counts."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.hits = 0

    def get(self, key: str) -> str | None:
        self.hits += key in self.texts
        return self.texts.get(key)

    def put(self, key: str, text: str) -> None:
        self.texts[key] = text


@pytest.fixture(autouse=True)
def _one_process_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache of this process answers in place of the store."""
    for name in ("_pack_once", "_solve_once"):
        monkeypatch.setattr(solve, name, getattr(solve, name).__wrapped__)


def unsolvable(*_: object, **__: object) -> Solution:
    raise AssertionError("solved again, though a solution is kept")


@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda g: g.name)
def test_what_is_kept_is_the_same_plan(
    machine: PlanGraph, collective: Collective, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Memory()
    first = plan(machine, collective, store=store)
    assert first == plan(machine, collective)
    monkeypatch.setattr(solve, "solve_exact", unsolvable)
    monkeypatch.setattr(solve, "solve_flows", unsolvable)
    again = plan(machine, collective, store=store)
    assert again == first
    assert store.hits == 1


def test_alike_graphs_share_what_is_kept() -> None:
    machine, store = random_graph(7, 6), Memory()
    plan(machine, C.ALL_GATHER, store=store)
    order = list(reversed(range(machine.nranks)))
    order += range(machine.nranks, len(machine.vertices))
    links = [(order[x.src], order[x.dst], x.gbps) for x in machine.links]
    plan(graph(machine.nranks, links, forwarders=len(machine.forwarders)), C.ALL_GATHER, store=store)
    assert store.hits == 1


@pytest.mark.parametrize("options", [{"solver": "mwu"}, {"solver": "ilp"}])
def test_options_are_part_of_the_key(options: dict[str, object]) -> None:
    machine, store = dgx1(), Memory()
    plan(machine, C.BROADCAST, 0, store=store)
    plan(machine, C.BROADCAST, store=store, **options)  # type: ignore[arg-type]
    assert store.hits == 0
    assert len(store.texts) == 2


def heavier(row: dict[str, object]) -> None:
    for weight in row["weights"]:  # type: ignore[attr-defined]
        weight[-1] = "1000000"
    row["rate"] = row["bound"] = "1000000"


def dropped_tree(row: dict[str, object]) -> None:
    row["weights"] = row["weights"][1:]  # type: ignore[index]


def bound_of_nothing(row: dict[str, object]) -> None:
    row["bound"] = "1"


def strange_symmetry(row: dict[str, object]) -> None:
    row["symmetry"] = [[10**9, [1, 0], [0]]]


def hops_of_nowhere(row: dict[str, object]) -> None:
    row["weights"][0][2][0] = [0, 77, [999]]  # type: ignore[index]


@pytest.mark.parametrize("change", [heavier, dropped_tree, bound_of_nothing, strange_symmetry, hops_of_nowhere])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda g: g.name)
def test_a_kept_lie_is_solved_again(machine: PlanGraph, change: Callable[[dict[str, object]], None]) -> None:
    store = Memory()
    honest = plan(machine, C.ALL_GATHER, store=store)
    ((key, text),) = store.texts.items()
    row = json.loads(text)
    change(row)
    store.texts[key] = json.dumps(row)
    assert plan(machine, C.ALL_GATHER, store=store) == honest
    assert store.texts[key] == text


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "{" * 100, '{"rate": 1}', "\x00"])
def test_whatever_lies_there_is_no_obstacle(text: str) -> None:
    store = Memory()
    for collective in (C.ALL_GATHER, C.ALLTOALL):
        honest = plan(dgx1(), collective, store=store)
        store.texts = dict.fromkeys(store.texts, text)
        assert plan(dgx1(), collective, store=store) == honest


def test_the_cache_keeps_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path / "cache"))
    first = plan(dgx1(), C.ALL_REDUCE, store=SolutionCache())
    (file,) = (tmp_path / "cache").rglob("solution.json")
    monkeypatch.setattr(solve, "solve_exact", unsolvable)
    assert plan(dgx1(), C.ALL_REDUCE, store=SolutionCache()) == first
    file.chmod(0o666)  # anybody may have written it
    with pytest.raises(AssertionError, match="solved again"):
        plan(dgx1(), C.ALL_REDUCE, store=SolutionCache())


def test_a_second_compile_packs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another library of the same GPUs takes the solutions of the first from the cache: the same plans."""
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path / "cache"))
    wanted = [(C.ALL_REDUCE, None), (C.BROADCAST, 0)]
    first = pack(dgx1(), wanted, Recorder(store=SolutionCache()))
    monkeypatch.setattr(solve, "solve_exact", unsolvable)
    assert pack(dgx1(), wanted, Recorder(store=SolutionCache())) == first
    with pytest.raises(AssertionError, match="solved again"):
        pack(dgx1(), wanted, Recorder())


def test_a_cache_that_cannot_be_used_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("COLLC_CACHE", str(tmp_path / "file" / "cache"))
    made: Plan = plan(dgx1(), C.BROADCAST, store=SolutionCache())
    check_packing(dgx1(), made)
