"""Networks of several levels: their symmetry is found level by level, and plans of them are proved up to it."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from graphs import lacking, nic_links

from collc.checker.orbits import orbits_of
from collc.packing import Collective, plan
from collc.packing.check import check_packing
from collc.packing.nested import nested_symmetry
from collc.packing.network import Net
from collc.packing.orbits import expanded
from collc.packing.refine import Refiner
from collc.packing.symmetry import as_hands, find_symmetry, orbits
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.make import make
from collc.topology.model import PlanGraph

C = Collective
# 8 pods of 4 edge and 4 aggregation switches, 4 times 4 core switches, a server of 4 GPUs on each edge switch.
WHOLE = plan_graph(loads_topology(make("fat-tree", {"ports": 8, "gpus": 4})))
POD = plan_graph(loads_topology(make("superpod", {"units": 4, "servers": 4, "spines": 4, "gpus": 8})))
GRAPHS: dict[str, PlanGraph] = {
    "fat tree": WHOLE,
    "fat tree less a NIC": lacking(WHOLE, links=nic_links(WHOLE, 5)),
    "fat tree less a GPU": lacking(WHOLE, vertices=[5]),
    "superpod": POD,
}


@pytest.mark.parametrize("root", [None, 0, 77])
@pytest.mark.parametrize("name", GRAPHS)
def test_rotations_are_automorphisms_that_commute_and_leave_the_root(name: str, root: int | None) -> None:
    graph = GRAPHS[name]
    net = Net.of(graph)
    found = nested_symmetry(Refiner(net, root), root)
    links = Counter(zip(net.tails, net.heads, net.caps, strict=True))
    for turn in found:
        assert Counter((turn.vertices[a], turn.vertices[b], cap) for a, b, cap in links.elements()) == links
        assert root is None or turn.vertices[root] == root
    for one, other in itertools.combinations(found, 2):
        assert [one.vertices[v] for v in other.vertices] == [other.vertices[v] for v in one.vertices]
    several = orbits(net, found)
    hands = as_hands(several)
    assert len(hands.generators) < len(several.generators) or name == "superpod"
    # Fewer generators, with the same orbits.
    assert orbits_of(net.nlinks, [g.links for g in hands.generators]) == list(several.link_orbit)
    assert orbits_of(net.nranks, [g.vertices[: net.nranks] for g in hands.generators]) == list(several.rank_orbit)


@pytest.mark.parametrize(("name", "ranks", "links"), [("fat tree", 1, 8), ("superpod", 1, 6)])
def test_whole_networks_have_one_kind_of_rank_and_one_of_each_link(name: str, ranks: int, links: int) -> None:
    graph = GRAPHS[name]
    found = find_symmetry(Net.of(graph), graph.servers, None)
    assert (len(set(found.rank_orbit)), len(set(found.link_orbit))) == (ranks, links)


def test_a_loss_leaves_the_other_pods_alike() -> None:
    """The server with the loss, its pod and the others: the ranks of 7 pods are one orbit."""
    graph = GRAPHS["fat tree less a NIC"]
    sizes = Counter(find_symmetry(Net.of(graph), graph.servers, None).rank_orbit)
    assert sorted(sizes.values()) == [1, 3, 12, 112]


@pytest.mark.parametrize("collective", [C.ALL_GATHER, C.ALL_REDUCE, C.BROADCAST])
@pytest.mark.parametrize("name", ["fat tree", "fat tree less a NIC", "superpod"])
def test_plans_are_proved_up_to_the_symmetry(name: str, collective: Collective) -> None:
    graph: PlanGraph = GRAPHS[name]
    made = plan(graph, collective, orbits=True)
    check_packing(graph, made)
    assert made.optimal
    assert made.orbits is not None
    assert len(made.orbits.orbits) <= 16
    if collective is C.ALL_GATHER:
        check_packing(graph, expanded(graph, made))
