"""Translates plans between isomorphic graphs, so that these are solved once.

A small graph is solved in its canonical numbering. The quality of its plan therefore depends neither on the order of
GPUs nor on the numbering of the machine, and isomorphic allocations or roots share one solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from collc.packing.model import Certificate, Cut, Flow, Hop, Partition, Plan, Prices, Tree
from collc.topology.canonical import canonical_order
from collc.topology.model import GraphLink, LinkKind, PlanGraph, Vertex, VertexKind


def canonical_graph(graph: PlanGraph, root: int | None) -> tuple[PlanGraph, tuple[int, ...]]:
    """Returns the graph that represents all isomorphic ones, and the vertex of `graph` for each of its vertices.

    Names, servers and latencies are dropped.

    Args:
        root: if not None, isomorphisms must also map this rank to the root of the other graph.
    """
    marked = graph if root is None else _with_mark(graph, root)
    order = tuple(v for v in canonical_order(marked) if v < len(graph.vertices))
    # Canonical order mixes ranks and other vertices, but ranks come first in a graph.
    order = tuple(sorted(order, key=lambda v: v >= graph.nranks))
    place = {v: i for i, v in enumerate(order)}
    vertices = tuple(Vertex(str(i), graph.vertices[v].kind) for i, v in enumerate(order))
    ends = sorted((place[x.src], place[x.dst], x.kind.value, x.gbps) for x in graph.links)
    links = tuple(GraphLink(i, src, dst, LinkKind(kind), gbps) for i, (src, dst, kind, gbps) in enumerate(ends))
    return PlanGraph("", graph.nranks, vertices, ("",) * len(vertices), links), order


def _with_mark(graph: PlanGraph, root: int) -> PlanGraph:
    """Adds a vertex with a link from the root, which distinguishes the root."""
    mark = GraphLink(len(graph.links), root, len(graph.vertices), LinkKind.C2C, Fraction(1))
    return replace(
        graph,
        vertices=(*graph.vertices, Vertex("root", VertexKind.NIC)),
        servers=(*graph.servers, ""),
        links=(*graph.links, mark),
    )


def relabel_plan(plan: Plan, source: PlanGraph, target: PlanGraph, mapping: Sequence[int]) -> Plan:
    """Returns a plan of `source` as a plan of `target`. Vertex v of `source` is vertex mapping[v] of `target`."""
    place: dict[tuple[int, int, LinkKind, Fraction], list[int]] = {}
    for x in target.links:
        place.setdefault((x.src, x.dst, x.kind, x.gbps), []).append(x.id)
    link = [place[mapping[x.src], mapping[x.dst], x.kind, x.gbps].pop(0) for x in source.links]

    def hops(old: tuple[Hop, ...]) -> tuple[Hop, ...]:
        return tuple(Hop(mapping[h.src], mapping[h.dst], tuple(link[x] for x in h.links)) for h in old)

    trees = [Tree(mapping[t.root], t.weight, hops(t.reduce), hops(t.broadcast)) for t in plan.trees]
    flows = [Flow(mapping[f.src], mapping[f.dst], f.weight, tuple(link[x] for x in f.links)) for f in plan.flows]
    return replace(
        plan,
        root=None if plan.root is None else mapping[plan.root],
        certificate=None if plan.certificate is None else _certificate(plan.certificate, link, mapping),
        trees=tuple(sorted(trees, key=lambda t: (t.root, -t.weight))),
        flows=tuple(sorted(flows, key=lambda f: (f.src, f.dst, f.links))),
    )


def _certificate(old: Certificate, link: Sequence[int], mapping: Sequence[int]) -> Certificate:
    if isinstance(old, Cut):
        return Cut(tuple(sorted(mapping[v] for v in old.side)))
    if isinstance(old, Partition):
        return Partition(tuple(sorted(tuple(sorted(mapping[v] for v in part)) for part in old.parts)))
    return Prices(tuple(sorted((link[x], price) for x, price in old.prices)))
