"""Topologies and plans as networkx graphs, for drawings, exports and second opinions.

Nodes and edges carry what the models hold: speeds and weights are exact `Fraction`s in GB/s, latencies microseconds.
Fractions serve networkx's flow algorithms as they are; `float` them for what writes numbers to files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from collc.packing.model import Hop, Plan
from collc.topology.model import PlanGraph, Topology

if TYPE_CHECKING:
    import networkx


@overload
def to_networkx(thing: Topology) -> networkx.MultiDiGraph[str]: ...
@overload
def to_networkx(thing: PlanGraph) -> networkx.MultiDiGraph[int]: ...
@overload
def to_networkx(thing: Plan, graph: PlanGraph) -> networkx.MultiDiGraph[int]: ...


def to_networkx(
    thing: Topology | PlanGraph | Plan, graph: PlanGraph | None = None
) -> networkx.MultiDiGraph[str] | networkx.MultiDiGraph[int]:
    """The networkx graph of a topology, of the graph of a plan, or of a plan.

    - `Topology`: nodes are names, edges have the link's kind as key.
    - `PlanGraph`: nodes are vertex numbers (rank i is node i), edges have the link's id as key.
    - `Plan` on its `graph`: nodes are ranks, edges are the hops of its trees and its flows.

    Nodes have `name`, `kind` and `server`, switches also `multicast` and `reduce`. Links have `kind`, `gbps`,
    `latency_us` and `capacity` (which is `gbps`, by the name that networkx's flows look for). Hops have `tree` (its
    place in the plan), `phase` ("reduce" or "broadcast"; "flow" for a flow, whose `tree` is its place among the flows),
    `weight` in GB/s and `links`, ids of the graph's links. The graph's own attributes are `name` and, for a plan,
    `collective`, `root` and `rate`.

    Args:
        graph: the graph that a plan is about; for a plan alone.
    """
    if isinstance(thing, Topology):
        return _topology(thing)
    if isinstance(thing, PlanGraph):
        return _plan_graph(thing)
    if graph is None:
        raise TypeError("a plan is converted with the graph that it is about")
    return _plan(thing, graph)


def _topology(topology: Topology) -> networkx.MultiDiGraph[str]:
    import networkx

    made: networkx.MultiDiGraph[str] = networkx.MultiDiGraph(name=topology.name)
    server = {name: server for server, names in topology.servers.items() for name in names}
    for v in topology.vertices:
        flags = {"multicast": v.multicast, "reduce": v.reduce}
        made.add_node(v.name, name=v.name, kind=v.kind.value, server=server.get(v.name), **flags)
    for x in topology.links:
        speed = {"gbps": x.gbps, "latency_us": x.latency_us, "capacity": x.gbps}
        made.add_edge(x.src, x.dst, key=x.kind.value, kind=x.kind.value, **speed)
    return made


def _plan_graph(graph: PlanGraph) -> networkx.MultiDiGraph[int]:
    made = _vertices(graph, range(len(graph.vertices)))
    for x in graph.links:
        speed = {"gbps": x.gbps, "latency_us": x.latency_us, "capacity": x.gbps}
        made.add_edge(x.src, x.dst, key=x.id, kind=x.kind.value, **speed)
    return made


def _plan(plan: Plan, graph: PlanGraph) -> networkx.MultiDiGraph[int]:
    made = _vertices(graph, graph.ranks)
    made.graph.update(collective=plan.collective.value, root=plan.root, rate=plan.rate)

    def add(hop: Hop, **attributes: object) -> None:
        made.add_edge(hop.src, hop.dst, links=hop.links, **attributes)

    for number, tree in enumerate(plan.trees):
        for phase, hops in (("reduce", tree.reduce), ("broadcast", tree.broadcast)):
            for hop in hops:
                add(hop, tree=number, phase=phase, weight=tree.weight)
    for number, flow in enumerate(plan.flows):
        add(Hop(flow.src, flow.dst, flow.links), tree=number, phase="flow", weight=flow.weight)
    return made


def _vertices(graph: PlanGraph, numbers: range) -> networkx.MultiDiGraph[int]:
    import networkx

    made: networkx.MultiDiGraph[int] = networkx.MultiDiGraph(name=graph.name)
    for number in numbers:
        v = graph.vertices[number]
        flags = {"multicast": v.multicast, "reduce": v.reduce}
        made.add_node(number, name=v.name, kind=v.kind.value, server=graph.servers[number], **flags)
    return made
