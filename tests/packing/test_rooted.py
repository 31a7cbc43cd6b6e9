"""Trees of one root by maximum flows: any graph without forwarders, to exactly its least cut."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from graphs import both, graph
from second_opinion import random_graph

from collc.packing import Collective, plan
from collc.packing.check import check_packing
from collc.packing.explain import plan_depth
from collc.packing.model import Cut, Hop, Plan, PlanType, Tree
from collc.packing.solvers.cuts import broadcast_cut
from collc.packing.solvers.edmonds import pack_rooted
from collc.packing.solvers.effort import Effort, OutOfEffortError
from collc.packing.solvers.network import Net
from collc.topology.model import PlanGraph

C = Collective


def torus(rows: int, columns: int) -> PlanGraph:
    pairs = []
    for i in range(rows):
        for j in range(columns):
            here = i * columns + j
            pairs += [(here, (i + 1) % rows * columns + j, 50), (here, i * columns + (j + 1) % columns, 50)]
    return graph(rows * columns, both(pairs), name="torus")


def hypercube(dimensions: int) -> PlanGraph:
    size = 1 << dimensions
    pairs = [(v, v | 1 << k, 50) for v in range(size) for k in range(dimensions) if not v >> k & 1]
    return graph(size, both(pairs), name="hypercube")


def broadcast_plan(machine: PlanGraph, root: int) -> Plan:
    """Returns the result of `pack_rooted` as a plan for the checker."""
    net = Net.of(machine)
    rate, side = broadcast_cut(net, root)
    found = pack_rooted(net, root, rate, Effort(1e9))
    trees = tuple(Tree(root, weight, (), tuple(Hop(*hop) for hop in column.out)) for column, weight in found)
    return Plan(C.BROADCAST, root, PlanType.TREES, "exact", rate, rate, True, Cut(side), trees)


@pytest.mark.parametrize("seed", range(60))
def test_the_least_cut_is_reached(seed: int) -> None:
    machine = random_graph(seed, 10)
    if len(machine.vertices) > machine.nranks:
        # Its switches hold data here: the same links, every vertex a rank.
        machine = graph(len(machine.vertices), [(x.src, x.dst, x.gbps) for x in machine.links])
    made = broadcast_plan(machine, Random(seed).randrange(machine.nranks))
    check_packing(machine, made)
    assert len(made.trees) <= machine.nranks + len(machine.links)


@pytest.mark.parametrize("collective", [C.BROADCAST, C.REDUCE])
@pytest.mark.parametrize(
    ("machine", "rate", "depth"), [(torus(8, 8), 200, 24), (torus(6, 7), 200, 20), (hypercube(6), 300, 24)]
)
def test_tori_and_hypercubes(machine: PlanGraph, rate: int, depth: int, collective: Collective) -> None:
    made = plan(machine, collective, 5)
    check_packing(machine, made)
    assert (made.rate, made.optimal) == (Fraction(rate), True)
    assert len(made.trees) == rate // 50
    assert plan_depth(made) <= depth


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "rate"), [(torus(16, 16), 200), (hypercube(8), 400)])
def test_256_gpus(machine: PlanGraph, rate: int) -> None:
    for collective in (C.BROADCAST, C.REDUCE):
        made = plan(machine, collective)
        assert (made.rate, made.optimal) == (Fraction(rate), True)


def test_effort_limits_the_flows() -> None:
    with pytest.raises(OutOfEffortError):
        pack_rooted(Net.of(torus(4, 4)), 0, broadcast_cut(Net.of(torus(4, 4)), 0)[0], Effort(100))
