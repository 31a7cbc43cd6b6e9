"""Fingerprints and matches of plan graphs, up to renaming and reordering of vertices.

The canonical form is igraph's `canonical_permutation` (BLISS: Junttila and Kaski, "Engineering an efficient canonical
labeling tool for large and sparse graphs", ALENEX 2007). Colour refinement alone would not do: it cannot tell a DGX-1P
from other 4-regular graphs on 8 vertices.

The time that BLISS takes grows with the square of a cluster. So graphs of more than `FOLD_FROM` vertices are folded
first (fold.py), by rules that isomorphic graphs share. A fingerprint covers every link in whatever order it finds: an
error of the order could make one of two equal graphs look different, never two different ones look equal.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from collc.topology.fold import folded_order, labelled
from collc.topology.model import PlanGraph

PREFIX = "g1-"
# Graphs of more vertices are folded before they are labelled. It is part of what a fingerprint is.
FOLD_FROM = 4096


def fingerprint(graph: PlanGraph) -> str:
    """``g1-`` and 32 hex digits; equal exactly for isomorphic graphs (up to SHA-256 collisions).

    It covers which vertices are ranks, the kinds of the others, and every directed link with its kind and exact speed.
    It does not cover names, order, latencies, servers and what a switch can do apart from forwarding.
    """
    text = _form(graph, canonical_order(graph))
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]


def match(a: PlanGraph, b: PlanGraph) -> tuple[int, ...] | None:
    """An isomorphism: entry v is the vertex of `b` that vertex v of `a` stands for; None if there is none.

    Ranks map to ranks. The mapping has been checked link by link.
    """
    if len(a.vertices) != len(b.vertices) or a.nranks != b.nranks or len(a.links) != len(b.links):
        return None
    mapping = [0] * len(a.vertices)
    for v, w in zip(canonical_order(a), canonical_order(b), strict=True):
        mapping[v] = w
    return tuple(mapping) if is_isomorphism(a, b, mapping) else None


def is_isomorphism(a: PlanGraph, b: PlanGraph, mapping: Sequence[int]) -> bool:
    """Whether `mapping` takes vertices of `a` to vertices of `b` one to one, with equal kinds and equal links."""
    if sorted(mapping) != list(range(len(b.vertices))) or len(mapping) != len(a.vertices):
        return False
    if any(_vertex_key(a, v) != _vertex_key(b, w) for v, w in enumerate(mapping)):
        return False
    moved = sorted((mapping[k.src], mapping[k.dst], k.kind.value, k.gbps) for k in a.links)
    return moved == sorted((k.src, k.dst, k.kind.value, k.gbps) for k in b.links)


def canonical_order(graph: PlanGraph) -> tuple[int, ...]:
    """The vertices of `graph` in an order that isomorphic graphs share."""
    colours, labels = labels_of(graph)
    if len(colours) > FOLD_FROM:
        return folded_order(colours, labels)
    edges = subdivide(colours, labels)
    return tuple(vertex for vertex in labelled(colours, edges) if vertex < len(graph.vertices))


def labels_of(graph: PlanGraph) -> tuple[list[str], Mapping[tuple[int, int], tuple[str, str]]]:
    """The colour of each vertex, and of each joined pair (lower number first) its links in both directions."""
    colours = [_vertex_key(graph, v) for v in range(len(graph.vertices))]
    between: dict[tuple[int, int], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for link in graph.links:
        low, high = sorted((link.src, link.dst))
        between[low, high][0 if link.src == low else 1].append(_speed_key(link.kind.value, link.gbps))
    return colours, {pair: (",".join(sorted(up)), ",".join(sorted(down))) for pair, (up, down) in between.items()}


def subdivide(colours: list[str], labels: Mapping[tuple[int, int], tuple[str, str]]) -> list[tuple[int, int]]:
    """The edges of the graph that BLISS sees, undirected with coloured vertices: each joined pair becomes one more
    vertex between the two, whose colour, appended to `colours`, is the pair's links in both directions, or two in a row
    (tail, head) if the directions differ.
    """
    edges: list[tuple[int, int]] = []
    for (low, high), (forth, back) in labels.items():
        if forth == back:
            edges += [(low, len(colours)), (len(colours), high)]
            colours.append(f"pair {forth}")
            continue
        tail, head = (low, high) if forth > back else (high, low)
        profile = f"{max(forth, back)} {min(forth, back)}"
        edges += [(tail, len(colours)), (len(colours), len(colours) + 1), (len(colours) + 1, head)]
        colours += [f"tail {profile}", f"head {profile}"]
    return edges


def _form(graph: PlanGraph, order: Sequence[int]) -> str:
    """The graph as text with its vertices in `order`."""
    at = {v: i for i, v in enumerate(order)}
    vertices = [_vertex_key(graph, v) for v in order]
    links = sorted((at[k.src], at[k.dst], _speed_key(k.kind.value, k.gbps)) for k in graph.links)
    return "\n".join([*vertices, *(f"{src} {dst} {speed}" for src, dst, speed in links)])


def _vertex_key(graph: PlanGraph, vertex: int) -> str:
    return "rank" if vertex < graph.nranks else f"forwards {graph.vertices[vertex].kind.value}"


def _speed_key(kind: str, gbps: object) -> str:
    return f"{kind} {gbps}"
