"""Plans by servers: proved, lowered and run for every shape, collective and root; few hops over the network."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import pytest
from support.libraries import cluster
from support.programs import check_sets

from collc.collectives.model import COMPILED, Collective
from collc.errors import PackingError
from collc.ir.interpret import run_on_sets
from collc.options import CUDA, HOST
from collc.packing import plan as packed_plan
from collc.packing.candidates import servers as candidate_servers
from collc.packing.candidates.paths import shortest_paths
from collc.packing.candidates.plans import candidate, with_proof
from collc.packing.check import check_packing
from collc.packing.model import Hop, Plan
from collc.pipeline import Recorder, lower
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.model import LinkKind, PlanGraph

KINDS = ("three-phase", "hierarchical-rings")
QUICK = [(2, 2), (3, 2), (1, 1, 3)]
SHAPES = [(2, 2), (2, 2, 2, 2), (3, 5), (1, 1, 6), (1, 1, 1), (4, 3)]
# Two DGX-1V, whose packings have trees of many weights, each with one card behind all of its PCIe switches.
MESHES = """
format: collc-topology/1
name: meshes
template: dgx1v
servers: 2
switches: [net]
links:
  - [each.mlx5_0, net, net, 12.5]
"""


def graph_of(*sizes: int) -> PlanGraph:
    return plan_graph(loads_topology(cluster(sizes)))


def uneven() -> PlanGraph:
    """3 + 5 GPUs with different links inside the servers, so that each tree has a different weight."""
    lines = cluster((3, 5)).splitlines()
    at = [i for i, line in enumerate(lines) if "nvlink" in line][::2]
    for i in at:
        lines[i] = lines[i].replace("gbps: 25", "gbps: 75")
    return plan_graph(loads_topology("\n".join(lines)))


def crosses(graph: PlanGraph, hop: Hop) -> bool:
    return graph.servers[hop.src] != graph.servers[hop.dst]


def network_hops(graph: PlanGraph, plan: Plan) -> int:
    """The most hops between servers that follow each other in one phase."""
    most = 0
    for tree in plan.trees:
        for inner, hops in (("dst", tree.reduce[::-1]), ("src", tree.broadcast)):
            far = {tree.root: 0}
            left = list(hops)
            while left:
                hop = next(h for h in left if getattr(h, inner) in far)
                left.remove(hop)
                outer = hop.src if inner == "dst" else hop.dst
                far[outer] = far[getattr(hop, inner)] + crosses(graph, hop)
            most = max(most, *far.values())
    return most


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("sizes", "every"),
    [*((sizes, False) for sizes in QUICK), *(pytest.param(sizes, True, marks=pytest.mark.slow) for sizes in SHAPES)],
    ids=str,
)
def test_every_shape_collective_and_root_is_proved_and_computes_it(
    sizes: tuple[int, ...], every: bool, kind: str
) -> None:
    graph = graph_of(*sizes)
    for collective in COMPILED:
        roots = graph.ranks if every else [graph.nranks - 1]
        for root in roots if collective.rooted else [None]:
            plan = with_proof(candidate(graph, collective, root, kind), packed_plan(graph, collective, root))
            check_packing(graph, plan)
            for target in (HOST, CUDA) if every else (HOST,):
                program = lower(plan, graph, target, Recorder())  # verified after every pass, and its routes
                check_sets(program, run_on_sets(program, chunks=3, seed=graph.nranks))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("meshes", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["uneven", "meshes"])
def test_trees_of_unequal_weights_are_cut_where_any_server_changes(meshes: bool, kind: str) -> None:
    graph = plan_graph(loads_topology(MESHES)) if meshes else uneven()
    for collective in COMPILED if meshes else (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        plan = with_proof(candidate(graph, collective, None, kind), packed_plan(graph, collective))
        check_packing(graph, plan)
        program = lower(plan, graph, HOST, Recorder())
        check_sets(program, run_on_sets(program, chunks=2))
        if collective.per_rank:
            of_root: dict[int, Fraction] = defaultdict(Fraction)
            for tree in plan.trees:
                of_root[tree.root] += tree.weight
            assert len(of_root) == graph.nranks
            assert len(set(of_root.values())) == 1


def test_local_trees_of_uneven_servers_have_several_weights() -> None:
    """Else the test above would cut nothing."""
    uneven_plan = candidate(uneven(), Collective.ALL_REDUCE, None, "three-phase")
    assert len({tree.weight for tree in uneven_plan.trees}) > 1


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (1, 1, 3)], ids=str)
@pytest.mark.parametrize("collective", COMPILED, ids=lambda c: c.value)
def test_three_phases_cross_the_network_once_and_rings_once_per_other_server(
    sizes: tuple[int, ...], collective: Collective
) -> None:
    graph = graph_of(*sizes)
    assert network_hops(graph, candidate(graph, collective, None, "three-phase")) == 1
    assert network_hops(graph, candidate(graph, collective, None, "hierarchical-rings")) == len(sizes) - 1


def test_rates_are_those_of_the_busiest_card() -> None:
    """Cards of 10 GB/s: a star of four sends three copies of a broadcast, a ring of four one."""
    graph = graph_of(2, 2, 2, 2)
    rates = {
        (kind, collective): candidate(graph, collective, None, kind).rate
        for kind in KINDS
        for collective in (Collective.BROADCAST, Collective.ALL_REDUCE, Collective.ALL_GATHER)
    }
    assert rates["three-phase", Collective.BROADCAST] == Fraction(10, 3)
    assert rates["hierarchical-rings", Collective.BROADCAST] == 10
    assert {rates[kind, Collective.ALL_REDUCE] for kind in KINDS} == {Fraction(20, 3)}
    assert {rates[kind, Collective.ALL_GATHER] for kind in KINDS} == {Fraction(40, 3)}


@pytest.mark.parametrize("sizes", [(1, 1, 6), (3, 5), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_servers_of_any_size_have_equal_parts_of_an_all_reduce(sizes: tuple[int, ...], kind: str) -> None:
    """So neither kind is below what the links can do; with equal parts of ranks rings of 1 + 1 + 6 reach 0.76 of it."""
    graph = graph_of(*sizes)
    plan = candidate(graph, Collective.ALL_REDUCE, None, kind)
    assert plan.rate == packed_plan(graph, Collective.ALL_REDUCE).bound
    of_server: dict[str, Fraction] = defaultdict(Fraction)
    for tree in plan.trees:
        of_server[graph.servers[tree.root]] += tree.weight
    assert len(set(of_server.values())) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_one_server_too_many_ranks_and_servers_that_are_not_joined_inside_are_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PackingError, match="on one server"):
        candidate(plan_graph(loads_topology(cluster((2, 2))), ["gpu0", "gpu1"]), Collective.ALL_REDUCE, None, kind)
    lines = [line for line in cluster((2, 2)).splitlines() if "[gpu0, gpu1]" not in line]
    apart = plan_graph(loads_topology("\n".join(lines)))
    assert all(x.kind is not LinkKind.NVLINK for x in apart.links if {x.src, x.dst} <= {0, 1})
    with pytest.raises(PackingError, match=r"server s0 have no plan of their own|no ring closes"):
        candidate(apart, Collective.ALL_REDUCE, None, kind)
    monkeypatch.setattr(candidate_servers, "MOST_RANKS", 4)
    candidate(graph_of(2, 2), Collective.BROADCAST, None, kind)
    with pytest.raises(PackingError, match="at most 4 GPUs"):
        candidate(graph_of(3, 2), Collective.BROADCAST, None, kind)


def test_a_graph_without_links_has_no_paths() -> None:
    alone = plan_graph(loads_topology(cluster((1, 1))), ["gpu0"])
    assert shortest_paths(alone) == {}
