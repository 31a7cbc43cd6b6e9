"""At most 4 x (GPUs + links) trees in every plan, whatever the graph, the collective and the solver."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from graphs import cluster, graph, lacking, nic_links
from test_odd_clusters import random_cluster

from collc.packing import Collective, plan
from collc.packing.check import check_packing
from collc.packing.solve import SOLVERS
from collc.packing.solvers.exact import new_problem
from collc.packing.solvers.network import Net
from collc.packing.symmetry import fewer
from collc.packing.symmetry.images import Spreader
from collc.topology.model import PlanGraph

C = Collective
TREES = [c for c in Collective if c.uses_trees]


def random_graph(seed: int) -> PlanGraph:
    """2 to 9 ranks and up to 3 switches, strongly connected, with links of random speeds each way."""
    rng = Random(seed)
    nranks, switches = rng.randint(2, 9), rng.randint(0, 3)
    total = nranks + switches
    order = list(range(total))
    rng.shuffle(order)
    ends = {(a, b) for a, b in zip(order, [*order[1:], order[0]], strict=True)}
    ends |= {(a, b) for a in range(total) for b in range(total) if a != b and rng.random() < 0.25}
    return graph(
        nranks, [(a, b, rng.choice((1, 2, 3, Fraction(7, 2), 10))) for a, b in sorted(ends)], forwarders=switches
    )


def assert_few(machine: PlanGraph, collective: Collective, solver: str = "exact", times: int = 4) -> None:
    made = plan(machine, collective, solver=solver)
    check_packing(machine, made)
    assert len(made.trees) <= times * (machine.nranks + len(machine.links))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 30))])
def test_random_graphs(seed: int, solver: str) -> None:
    for collective in TREES:
        assert_few(random_graph(seed), collective, solver)


@pytest.mark.parametrize(
    "seed", [*range(100, 106), *(pytest.param(s, marks=pytest.mark.slow) for s in range(106, 140))]
)
def test_random_clusters(seed: int) -> None:
    machine = random_cluster(seed, 40)
    for collective in (C.ALL_GATHER, C.ALL_REDUCE, C.BROADCAST):
        assert_few(machine, collective)


@pytest.mark.parametrize("collective", TREES)
def test_symmetries_that_multiply(collective: Collective) -> None:
    """Servers of three sizes on one rail, GPUs and NICs lost: 42 x 4 x 18 combined turns of some trees."""
    machine = cluster([7, 4, 7, 5, 7, 4, 7, 5, 7, 4, 7, 7], rails=1)
    machine = lacking(machine, links=nic_links(machine, 3) | nic_links(machine, 20))
    assert_few(machine, collective)


@pytest.mark.parametrize("collective", [C.ALL_GATHER, C.ALL_REDUCE, C.BROADCAST])
@pytest.mark.parametrize("seed", range(200, 204))
def test_symmetry_is_given_up_where_it_makes_too_many(
    seed: int, collective: Collective, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vertex of the LP without symmetry has no more columns than links and ranks, so a limit so low can be kept."""
    machine = random_cluster(seed, 30)
    rate = plan(machine, collective).rate
    monkeypatch.setattr(fewer, "most_trees", lambda nranks, nlinks: nranks + nlinks)
    plan.__globals__["_solve_once"].cache_clear()
    plan.__globals__["_pack_once"].cache_clear()
    try:
        assert_few(machine, collective, times=1)
        assert plan(machine, collective).rate == rate
    finally:
        plan.__globals__["_solve_once"].cache_clear()
        plan.__globals__["_pack_once"].cache_clear()


@pytest.mark.parametrize("seed", range(300, 310))
def test_images_spread_loads_and_roots_as_all_images_do(seed: int) -> None:
    """The few elements that a column needs give every link, and every root, what the whole group gives it."""
    machine = random_cluster(seed, 30)
    net = Net.of(machine)
    problem = new_problem(net, C.ALL_GATHER, None, machine.servers)
    symmetry = problem.symmetry
    generator = problem.generator()
    generator.seed(2)
    generator.seed(None)
    spreader = Spreader(symmetry, net.nverts)
    for column in generator.columns:
        elements = spreader.elements(column)
        assert len(elements) == spreader.count(column)
        assert sum(share for share, _, _ in elements) == 1
        loads, roots = column.loads(), {column.root: 1}
        for orbit, part, amount in ((symmetry.link_orbit, 2, loads), (symmetry.rank_orbit, 1, roots)):
            spread = [Fraction(0)] * len(orbit)
            for element in elements:
                where = element[2] if part == 2 else element[1]
                for x, times in amount.items():
                    spread[where[x]] += element[0] * times
            total: dict[int, int] = {}
            for x, times in amount.items():
                total[orbit[x]] = total.get(orbit[x], 0) + times
            assert spread == [Fraction(total.get(start, 0), orbit.count(start)) for start in orbit]
