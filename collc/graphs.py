"""Converts topologies and plans to networkx graphs, for drawings, exports and independent checks.

Nodes and edges have the values of the models: speeds and weights are exact `Fraction`s in GB/s, latencies are in
microseconds. The flow algorithms of networkx accept Fractions; convert them to `float` before writing files.
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
    """Returns the networkx graph of a topology, of the graph of a plan, or of a plan.

    - `Topology`: nodes are names, edges have the link's kind as key.
    - `PlanGraph`: nodes are vertex numbers (rank i is node i), edges have the link's id as key.
    - `Plan` on its `graph`: nodes are ranks, edges are the hops of its trees and its flows.

    Nodes have `name`, `kind`, `server`, `multicast` and `reduce`; the last two are True only for switches. Links have
    `kind`, `gbps`, `latency_us` and `capacity`, which is `gbps` under the name that networkx's flows expect. Hops have
    `tree` (its index in the plan), `phase` ("reduce" or "broadcast"; "flow" for a flow, whose `tree` is its index among
    the flows), `weight` in GB/s, and `links`, the ids of the graph's links. The graph itself has `name` and, for a
    plan, `collective`, `root` and `rate`.

    Args:
        graph: the graph of the plan; needed only for a plan.
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

    graph: networkx.MultiDiGraph[str] = networkx.MultiDiGraph(name=topology.name)
    server = {name: server for server, names in topology.servers.items() for name in names}
    for v in topology.vertices:
        flags = {"multicast": v.multicast, "reduce": v.reduce}
        graph.add_node(v.name, name=v.name, kind=v.kind.value, server=server.get(v.name), **flags)
    for x in topology.links:
        speed = {"gbps": x.gbps, "latency_us": x.latency_us, "capacity": x.gbps}
        graph.add_edge(x.src, x.dst, key=x.kind.value, kind=x.kind.value, **speed)
    return graph


def _plan_graph(graph: PlanGraph) -> networkx.MultiDiGraph[int]:
    result = _vertices(graph, range(len(graph.vertices)))
    for x in graph.links:
        speed = {"gbps": x.gbps, "latency_us": x.latency_us, "capacity": x.gbps}
        result.add_edge(x.src, x.dst, key=x.id, kind=x.kind.value, **speed)
    return result


def _plan(plan: Plan, graph: PlanGraph) -> networkx.MultiDiGraph[int]:
    result = _vertices(graph, graph.ranks)
    result.graph.update(collective=plan.collective.value, root=plan.root, rate=plan.rate)

    def add(hop: Hop, **attributes: object) -> None:
        result.add_edge(hop.src, hop.dst, links=hop.links, **attributes)

    for number, tree in enumerate(plan.trees):
        for phase, hops in (("reduce", tree.reduce), ("broadcast", tree.broadcast)):
            for hop in hops:
                add(hop, tree=number, phase=phase, weight=tree.weight)
    for number, flow in enumerate(plan.flows):
        add(Hop(flow.src, flow.dst, flow.links), tree=number, phase="flow", weight=flow.weight)
    return result


def _vertices(graph: PlanGraph, numbers: range) -> networkx.MultiDiGraph[int]:
    import networkx

    result: networkx.MultiDiGraph[int] = networkx.MultiDiGraph(name=graph.name)
    for number in numbers:
        v = graph.vertices[number]
        flags = {"multicast": v.multicast, "reduce": v.reduce}
        result.add_node(number, name=v.name, kind=v.kind.value, server=graph.servers[number], **flags)
    return result
