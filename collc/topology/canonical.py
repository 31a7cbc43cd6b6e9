"""Fingerprints and matches of plan graphs, up to renaming and reordering of vertices.

The canonical form is igraph's `canonical_permutation` (BLISS: Junttila and Kaski, "Engineering an efficient canonical
labeling tool for large and sparse graphs", ALENEX 2007). Color refinement is not enough: it cannot distinguish a DGX-1P
from other 4-regular graphs on 8 vertices.

The time of BLISS grows with the square of the cluster's size. So graphs of more than `FOLD_FROM` vertices are folded
first (fold.py), by rules that depend only on the structure of the graph. A fingerprint covers every link, whatever the
order of the vertices is. So a wrong order could give two isomorphic graphs different fingerprints, but never give two
different graphs the same fingerprint.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from collc.topology.fold import folded_order, labeled
from collc.topology.model import PlanGraph

PREFIX = "g1-"
# Graphs of more vertices are folded before they are labeled. Another value would change fingerprints.
FOLD_FROM = 4096


def fingerprint(graph: PlanGraph) -> str:
    """Returns ``g1-`` and 32 hex digits, equal exactly for isomorphic graphs (up to SHA-256 collisions).

    The fingerprint covers the ranks, the kinds of the other vertices, and every directed link with its kind and exact
    speed. It does not cover names, order, latencies, servers, and abilities of switches other than forwarding.
    """
    text = _form(graph, canonical_order(graph))
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]


def match(a: PlanGraph, b: PlanGraph) -> tuple[int, ...] | None:
    """Returns an isomorphism from `a` to `b`, or None: entry v is the vertex of `b` for vertex v of `a`.

    Ranks map to ranks. The mapping is checked link by link.
    """
    if len(a.vertices) != len(b.vertices) or a.nranks != b.nranks or len(a.links) != len(b.links):
        return None
    mapping = [0] * len(a.vertices)
    for v, w in zip(canonical_order(a), canonical_order(b), strict=True):
        mapping[v] = w
    return tuple(mapping) if is_isomorphism(a, b, mapping) else None


def is_isomorphism(a: PlanGraph, b: PlanGraph, mapping: Sequence[int]) -> bool:
    """Returns True if `mapping` is one to one from vertices of `a` to vertices of `b`, with equal kinds and links."""
    if sorted(mapping) != list(range(len(b.vertices))) or len(mapping) != len(a.vertices):
        return False
    if any(_vertex_key(a, v) != _vertex_key(b, w) for v, w in enumerate(mapping)):
        return False
    moved = sorted((mapping[k.src], mapping[k.dst], k.kind.value, k.gbps) for k in a.links)
    return moved == sorted((k.src, k.dst, k.kind.value, k.gbps) for k in b.links)


def canonical_order(graph: PlanGraph) -> tuple[int, ...]:
    """Returns the vertices of `graph` in canonical order: isomorphic graphs have the same graph in this order."""
    colors, labels = labels_of(graph)
    if len(colors) > FOLD_FROM:
        return folded_order(colors, labels)
    edges = subdivide(colors, labels)
    return tuple(vertex for vertex in labeled(colors, edges) if vertex < len(graph.vertices))


def labels_of(graph: PlanGraph) -> tuple[list[str], Mapping[tuple[int, int], tuple[str, str]]]:
    """Returns the color of each vertex, and the links of each adjacent pair (lower number first) in both directions."""
    colors = [_vertex_key(graph, v) for v in range(len(graph.vertices))]
    between: dict[tuple[int, int], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for link in graph.links:
        low, high = sorted((link.src, link.dst))
        between[low, high][0 if link.src == low else 1].append(_speed_key(link.kind.value, link.gbps))
    return colors, {pair: (",".join(sorted(up)), ",".join(sorted(down))) for pair, (up, down) in between.items()}


def subdivide(colors: list[str], labels: Mapping[tuple[int, int], tuple[str, str]]) -> list[tuple[int, int]]:
    """Returns the edges of the undirected graph with colored vertices that BLISS gets.

    Each adjacent pair gets an extra vertex between the two, whose color is the pair's links. If its two directions
    differ, it gets two extra vertices in a row (tail, head). Appends the colors of extra vertices to `colors`.
    """
    edges: list[tuple[int, int]] = []
    for (low, high), (forth, back) in labels.items():
        if forth == back:
            edges += [(low, len(colors)), (len(colors), high)]
            colors.append(f"pair {forth}")
            continue
        tail, head = (low, high) if forth > back else (high, low)
        profile = f"{max(forth, back)} {min(forth, back)}"
        edges += [(tail, len(colors)), (len(colors), len(colors) + 1), (len(colors) + 1, head)]
        colors += [f"tail {profile}", f"head {profile}"]
    return edges


def _form(graph: PlanGraph, order: Sequence[int]) -> str:
    """Returns the graph as text, with its vertices in `order`."""
    at = {v: i for i, v in enumerate(order)}
    vertices = [_vertex_key(graph, v) for v in order]
    links = sorted((at[k.src], at[k.dst], _speed_key(k.kind.value, k.gbps)) for k in graph.links)
    return "\n".join([*vertices, *(f"{src} {dst} {speed}" for src, dst, speed in links)])


def _vertex_key(graph: PlanGraph, vertex: int) -> str:
    return "rank" if vertex < graph.nranks else f"forwards {graph.vertices[vertex].kind.value}"


def _speed_key(kind: str, gbps: object) -> str:
    return f"{kind} {gbps}"
