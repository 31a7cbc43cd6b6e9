"""Rail-optimized clusters, one network per rail: plans reach all GPUs through GPUs of the same server.

NCCL calls that PXN. Here a GPU that forwards is a hop of a tree like any other, so all behind the packing has it.
"""

from __future__ import annotations

import pytest
from support.machines import WIDE
from support.programs import check_sets

from collc.checker.packing import check_packing
from collc.collectives.model import COMPILED, Collective
from collc.ir.interpret import run_on_sets
from collc.packing.model import Tree
from collc.simulator.run import Simulator, Variant, own_channels
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.make import make
from collc.topology.model import LinkKind, PlanGraph

NIC = 50


def rails(gpus: int = 4) -> PlanGraph:
    """Two servers with a card beside each GPU; cards of equal numbers share a switch, others meet nowhere."""
    return plan_graph(loads_topology(make("rails", {"servers": 2, "gpus": gpus, "rails": gpus, "nic": NIC})))


def alone(graph: PlanGraph, src: int, dst: int) -> bool:
    """Returns whether two ranks are on one switch of the network."""
    net = [k for k in graph.links if k.kind is LinkKind.NET]
    return bool({k.dst for k in net if k.src == src} & {k.src for k in net if k.dst == dst})


def crosses_by(graph: PlanGraph, tree: Tree, card: int) -> bool:
    """Returns whether a tree uses this NIC of the servers."""
    hops = [*tree.reduce, *tree.broadcast]
    return any(graph.servers[hop.src] != graph.servers[hop.dst] and hop.src % 4 == card for hop in hops)


@pytest.mark.parametrize("collective", COMPILED)
def test_all_rails_carry_what_one_gpu_has(collective: Collective) -> None:
    """The rate is the sum of all NICs, and each rail carries a part, although a GPU has only one NIC."""
    graph = rails()
    simulator = Simulator(graph, collective)
    plan = simulator.plan("trees")
    check_packing(graph, plan)
    hops = [hop for tree in plan.trees for hop in (*tree.reduce, *tree.broadcast)]
    crossing = [hop for hop in hops if graph.servers[hop.src] != graph.servers[hop.dst]]
    assert all(alone(graph, hop.src, hop.dst) for hop in crossing)
    assert {hop.src % 4 for hop in crossing} == {0, 1, 2, 3}
    if collective in (Collective.BROADCAST, Collective.REDUCE):
        assert plan.rate == 4 * NIC
        # Three quarters cross by cards of other GPUs than the root: by way of a GPU of a server.
        relayed = sum(tree.weight for tree in plan.trees if not crosses_by(graph, tree, tree.root % 4))
        assert relayed == 3 * NIC


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE])
def test_programs_carry_it(collective: Collective) -> None:
    """Lowered, verified, interpreted; and simulated: what one rail carries is a quarter, in a quarter of the time."""
    graph = rails()
    simulator = Simulator(graph, collective, machine=WIDE)
    channels = own_channels(simulator.plan("trees"))
    _, program = simulator.lowered("trees", channels)
    check_sets(program, run_on_sets(program, chunks=2))
    size = 1 << 28
    found = simulator.predict(Variant("trees", "Simple", 1 << 19, channels), size)
    sent = {
        link.src % 4: carried * found.scale
        for link, carried in zip(graph.links, found.outcome.link_bytes, strict=False)
        if link.kind is LinkKind.NET and link.src < 4
    }
    if collective is Collective.REDUCE:
        assert not any(sent.values())
    if collective is Collective.ALL_REDUCE:
        assert len(sent) == 4
        assert all(carried == pytest.approx(size / 4, rel=0.05) for carried in sent.values())
    if collective is Collective.BROADCAST:
        assert all(carried == pytest.approx(size / 4, rel=0.05) for carried in sent.values())
        one_rail_us = size / (NIC * 1e3)
        assert found.time_us < 0.35 * one_rail_us
