"""Networks of several levels: their symmetry is found level by level, and plans of them are proved up to it."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from graphs import lacking, nic_links

from collc.checker.images import orbits_of
from collc.packing import Collective, plan
from collc.packing.check import check_packing
from collc.packing.explain import plan_depth
from collc.packing.solvers import columns
from collc.packing.solvers.network import Net
from collc.packing.symmetry.groups import find_symmetry, merge_generators, orbits
from collc.packing.symmetry.nested import nested_symmetry
from collc.packing.symmetry.orbits import expand_orbits
from collc.packing.symmetry.refine import Refiner
from collc.topology.fold import Folded
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.make import make
from collc.topology.model import PlanGraph

C = Collective
# 8 pods of 4 edge and 4 aggregation switches, 4 times 4 core switches, a server of 4 GPUs on each edge switch.
WHOLE = plan_graph(loads_topology(make("fat-tree", {"ports": 8, "gpus": 4})))
POD = plan_graph(loads_topology(make("superpod", {"units": 4, "servers": 4, "spines": 4, "gpus": 8})))
# The same with servers of 8 GPUs: each lies across two edge switches, which are joined by it.
ACROSS = plan_graph(loads_topology(make("fat-tree", {"ports": 8, "gpus": 8})))
GRAPHS: dict[str, PlanGraph] = {
    "fat tree": WHOLE,
    "fat tree less a NIC": lacking(WHOLE, links=nic_links(WHOLE, 5)),
    "fat tree less a GPU": lacking(WHOLE, vertices=[5]),
    "superpod": POD,
    "across": ACROSS,
    "across less a NIC": lacking(ACROSS, links=nic_links(ACROSS, 5)),
    "across less a GPU": lacking(ACROSS, vertices=[5]),
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
    hands = merge_generators(several)
    assert len(hands.generators) < len(several.generators) or name == "superpod"
    # Fewer generators, with the same orbits.
    assert orbits_of(net.nlinks, [g.links for g in hands.generators]) == list(several.link_orbit)
    assert orbits_of(net.nranks, [g.vertices[: net.nranks] for g in hands.generators]) == list(several.rank_orbit)


@pytest.mark.parametrize(("name", "ranks", "links"), [("fat tree", 1, 8), ("superpod", 1, 6), ("across", 1, 8)])
def test_whole_networks_have_one_kind_of_rank_and_one_of_each_link(name: str, ranks: int, links: int) -> None:
    graph = GRAPHS[name]
    found = find_symmetry(Net.of(graph), graph.servers, None)
    assert (len(set(found.rank_orbit)), len(set(found.link_orbit))) == (ranks, links)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fat tree less a NIC", [1, 3, 12, 112]),
        ("fat tree less a GPU", [3, 12, 112]),
        ("across less a NIC", [1, 3, 4, 8, 112]),
        ("across less a GPU", [3, 4, 8, 112]),
    ],
)
def test_a_loss_leaves_the_other_pods_alike(name: str, expected: list[int]) -> None:
    """The server with the loss, its pod and the others: the ranks of 7 pods are one orbit."""
    graph = GRAPHS[name]
    sizes = Counter(find_symmetry(Net.of(graph), graph.servers, None).rank_orbit)
    assert sorted(sizes.values()) == expected


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_joined_twins_turn_with_what_lies_between_them(count: int) -> None:
    """`count` hubs below two cores, any two joined by a chain of 3: 1, 2, ... steps on, and half way round."""
    vertices = count + 2
    pairs = [(hub, core) for hub in range(count) for core in (count, count + 1)]
    for a, b in itertools.combinations(range(count), 2):
        way = [a, vertices, vertices + 1, vertices + 2, b]
        vertices += 3
        pairs += itertools.pairwise(way)
    colors = ["one core" if v == count else "other core" if v == count + 1 else "v" for v in range(vertices)]
    folded = Folded(colors, dict.fromkeys(pairs, ("1", "1")), joined=True)
    assert len(folded.color) == 1
    edges = {frozenset(pair) for pair in pairs}
    whole = folded.twins[-1]
    image = {v: w for cycle in whole for v, w in zip(cycle, [*cycle[1:], cycle[0]], strict=True)}
    assert {frozenset(image.get(v, v) for v in edge) for edge in edges} == edges
    assert {image[hub] for hub in range(count)} == set(range(count))


@pytest.mark.parametrize("collective", [C.ALL_GATHER, C.ALL_REDUCE, C.BROADCAST])
@pytest.mark.parametrize("name", ["fat tree", "fat tree less a NIC", "superpod", "across", "across less a GPU"])
@pytest.mark.slow_for("across less a GPU-Collective.ALL_GATHER")
def test_plans_are_proved_up_to_the_symmetry(name: str, collective: Collective) -> None:
    graph: PlanGraph = GRAPHS[name]
    made = plan(graph, collective, orbits=True)
    check_packing(graph, made)
    assert made.optimal
    assert made.orbits is not None
    assert len(made.orbits.orbits) <= 16
    if collective is C.ALL_GATHER:
        check_packing(graph, expand_orbits(graph, made))


@pytest.mark.parametrize("name", ["fat tree", "across less a GPU"])
def test_trees_of_thousands_of_ranks_are_as_deep_as_the_network_needs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broadcast that fills every level of switches takes trees of more than three hops beyond the least."""
    expected = plan(GRAPHS[name], C.BROADCAST, orbits=True)
    monkeypatch.setattr(columns, "SPARSE_FROM", 8)
    plan.__globals__["_solve_once"].cache_clear()
    found = plan(GRAPHS[name], C.BROADCAST, orbits=True)
    plan.__globals__["_solve_once"].cache_clear()
    assert found.optimal
    assert found.rate == expected.rate
    assert plan_depth(found) > 4
