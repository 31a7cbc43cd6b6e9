"""networkx sees the same machines and plans, and its own algorithms agree with ours."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import pytest
from support.machines import two_servers

from collc import packing
from collc.collectives.model import Collective
from collc.graphs import to_networkx
from collc.packing.model import Plan
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph
from collc.topology.zoo import names

SMALL = {"dgx1v": ["gpu0", "gpu1", "gpu2", "gpu5"], "pcie-8x4090": ["gpu0", "gpu1", "gpu5"], "hgx-h100": None}


def graph_of(machine: str) -> PlanGraph:
    return plan_graph(two_servers()) if machine == "two" else plan_graph(load_topology(machine), SMALL[machine])


@pytest.mark.parametrize("machine", [name for name in names() if name != "gb200-nvl72"])
def test_a_topology_keeps_every_vertex_and_link(machine: str) -> None:
    topology = load_topology(machine)
    made = to_networkx(topology)
    assert list(made) == [v.name for v in topology.vertices]
    found = {(a, b, key): data for a, b, key, data in made.edges(keys=True, data=True)}
    assert set(found) == {(x.src, x.dst, x.kind.value) for x in topology.links}
    for x in topology.links:
        data = found[x.src, x.dst, x.kind.value]
        assert (data["gbps"], data["capacity"], data["latency_us"]) == (x.gbps, x.gbps, x.latency_us)
    at = {name: data["server"] for name, data in made.nodes(data=True)}
    servers = {server: {name for name in at if at[name] == server} for server in topology.servers}
    assert servers == {server: set(held) for server, held in topology.servers.items()}


def simple(graph: PlanGraph) -> nx.DiGraph[int]:
    """One edge per pair, capacities added."""
    made: nx.DiGraph[int] = nx.DiGraph()
    for a, b, data in to_networkx(graph).edges(data=True):
        before = made.get_edge_data(a, b, {"capacity": Fraction(0)})["capacity"]
        made.add_edge(a, b, capacity=before + data["capacity"])
    return made


@pytest.mark.parametrize("machine", [*SMALL, "two"])
def test_a_broadcast_has_the_rate_of_the_least_maximum_flow(machine: str) -> None:
    """Edmonds 1973, with networkx's flows in place of ours; every switch here has equal capacity in and out."""
    graph = graph_of(machine)
    plan = packing.plan(graph, Collective.BROADCAST, 1)
    flows = [nx.maximum_flow_value(simple(graph), 1, rank) for rank in graph.ranks if rank != 1]
    assert plan.rate == min(flows)


def phases(plan: Plan, graph: PlanGraph) -> dict[tuple[int, str], nx.DiGraph[int]]:
    found: dict[tuple[int, str], nx.DiGraph[int]] = {}
    for a, b, data in to_networkx(plan, graph).edges(data=True):
        found.setdefault((data["tree"], data["phase"]), nx.DiGraph()).add_edge(a, b, **data)
    return found


@pytest.mark.parametrize("collective", [c for c in Collective if c.uses_trees], ids=lambda c: c.value)
@pytest.mark.parametrize("machine", [*SMALL, "two"])
def test_the_trees_of_a_plan_are_spanning_arborescences(machine: str, collective: Collective) -> None:
    graph = graph_of(machine)
    plan = packing.plan(graph, collective)
    made = phases(plan, graph)
    assert len(made) == len(plan.trees) * (2 if collective.both_phases else 1)
    load: dict[int, Fraction] = {}
    for (number, phase), tree in made.items():
        outward = tree.reverse() if phase == "reduce" else tree
        assert nx.is_arborescence(outward)
        assert set(outward) == set(graph.ranks)
        assert [rank for rank, degree in outward.in_degree() if not degree] == [plan.trees[number].root]
        for _, _, data in tree.edges(data=True):
            for link in data["links"]:
                load[link] = load.get(link, Fraction(0)) + data["weight"]
    assert all(load[link] <= graph.links[link].gbps for link in load)


def test_flows_and_what_is_no_plan() -> None:
    graph = graph_of("dgx1v")
    plan = packing.plan(graph, Collective.ALLTOALL)
    made = to_networkx(plan, graph)
    assert made.number_of_edges() == len(plan.flows)
    assert {data["phase"] for _, _, data in made.edges(data=True)} == {"flow"}
    assert made.graph == {"name": graph.name, "collective": "alltoall", "root": None, "rate": plan.rate}
    with pytest.raises(TypeError, match="with the graph"):
        to_networkx(plan)  # type: ignore[call-overload]
