"""`mwu` and `ilp` answer to the same checker; what they claim is checked here against the exact solver."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from graphs import both, dgx1, graph, rails, star
from second_opinion import random_graph

from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.packing import plan
from collc.packing.check import check_packing
from collc.packing.explain import common_denominator, plan_depth
from collc.packing.solvers.enumerate import shallow_trees
from collc.packing.solvers.network import Net
from collc.packing.solvers.trade import depth_trade

C = Collective
TREES = [c for c in Collective if c.uses_trees]


@pytest.mark.parametrize("root", range(8))
def test_dgx1v_broadcast_needs_four_trees(root: int) -> None:
    made = plan(dgx1(), C.BROADCAST, root, "ilp")
    assert (made.rate, len(made.trees), made.optimal) == (Fraction(150), 4, True)
    assert made.remark.startswith("4 trees: proven")


def test_fewer_trees_for_a_share_of_the_rate() -> None:
    machine = dgx1()
    made = plan(machine, C.BROADCAST, 0, "ilp", Fraction(1, 3))
    assert made.rate is not None
    assert 100 <= made.rate <= 150
    assert len(made.trees) < 4
    assert made.optimal == (made.rate == 150)


def test_a_tree_is_enough_where_one_chain_is_all() -> None:
    made = plan(graph(4, both([(0, 1, 5), (1, 2, 5), (2, 3, 5)])), C.REDUCE, 0, "ilp")
    assert len(made.trees) == 1
    assert made.remark.startswith("1 tree: proven")


@pytest.mark.parametrize("collective", [C.ALL_REDUCE, C.ALL_GATHER])
@pytest.mark.slow_for("Collective.ALL_GATHER")
def test_ilp_never_has_more_trees_than_exact(collective: Collective) -> None:
    machine = dgx1((0, 1, 2, 4, 5, 6))
    few, default = plan(machine, collective, None, "ilp"), plan(machine, collective)
    assert few.rate == default.rate
    assert len(few.trees) <= len(default.trees)
    assert "best found" in few.remark or "proven" in few.remark


@pytest.mark.parametrize("collective", TREES)
@pytest.mark.parametrize("machine", [dgx1(), star(6), rails(2, 4), random_graph(3, 6)], ids=lambda g: g.name)
def test_mwu_stays_within_the_gap_that_it_proves(machine: object, collective: Collective) -> None:
    near, best = plan(machine, collective, None, "mwu"), plan(machine, collective)  # type: ignore[arg-type]
    check_packing(machine, near)  # type: ignore[arg-type]
    assert near.rate is not None
    assert near.bound is not None
    assert best.rate is not None
    assert near.rate <= best.rate <= near.bound
    assert near.rate >= best.rate * Fraction(98, 100)


def test_an_unknown_solver_is_refused() -> None:
    with pytest.raises(UsageError, match="no solver 'gurobi'"):
        plan(star(3), C.BROADCAST, 0, "gurobi")


@pytest.mark.parametrize(
    ("collective", "trees", "depth", "parts"),
    [(C.ALL_REDUCE, 10, 2, 48), (C.ALL_GATHER, 22, 2, 48), (C.BROADCAST, 6, 4, 6)],
)
def test_default_plans_of_a_dgx1v_are_small(collective: Collective, trees: int, depth: int, parts: int) -> None:
    made = plan(dgx1(), collective)
    assert len(made.trees) <= trees
    assert plan_depth(made) == depth
    assert common_denominator(made) <= parts


def test_every_shallow_tree_is_listed_once() -> None:
    # Cayley: 16 trees on 4 labeled vertices. From one of them the star has depth 1, nine trees have depth 2, and the
    # six chains that start there have depth 3.
    net = Net.of(graph(4, [(a, b, 1) for a in range(4) for b in range(4) if a != b]))
    counts = []
    for depth in (1, 2, 3):
        found = shallow_trees(net, 0, depth, 100)
        assert found is not None
        assert len({frozenset((u, v) for u, v, _ in hops) for hops in found}) == len(found)
        counts.append(len(found))
    assert counts == [1, 10, 16]
    assert shallow_trees(net, 0, 3, 15) is None
    assert shallow_trees(Net.of(star(4)), 0, 1, 100) is not None


def test_the_spanning_trees_of_a_dgx1v() -> None:
    # Kirchhoff's theorem counts 3,456 spanning trees in the 4-regular graph of its links.
    found = shallow_trees(Net.of(dgx1(volta=False)), 0, 7, 4000)
    assert found is not None
    assert len(found) == 3456


def test_each_row_of_a_trade_is_better_than_the_one_before() -> None:
    rows = depth_trade(dgx1((0, 1, 2, 3, 4)), C.ALL_GATHER)
    assert all((b.rate, -b.trees) > (a.rate, -a.trees) for a, b in pairwise(rows))
    assert rows[-1].rate == plan(dgx1((0, 1, 2, 3, 4)), C.ALL_GATHER).rate


@pytest.mark.parametrize("collective", [C.ALLTOALL, C.BROADCAST])
def test_what_has_no_trade_is_refused(collective: Collective) -> None:
    with pytest.raises(UsageError):
        depth_trade(star(16), collective)
