"""Shortest paths between ranks, and the hops along them of plans that no solver packs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing.model import Hop
from collc.topology.model import PlanGraph

Edge = tuple[int, int]
Paths = dict[Edge, tuple[int, ...]]


def shortest_paths(graph: PlanGraph) -> Paths:
    """(source, destination) -> the links of a path with the fewest links, the widest of those; through no other rank.

    Pairs without one are absent. O(ranks * links). Own code, because libraries do not break ties by width.
    """
    out: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for each in graph.links:
        out[each.src].append((each.id, each.dst))
    found: Paths = {}
    for source in graph.ranks:
        # Breadth first by levels; within a level the widest way to each vertex wins, then the lowest link.
        widest = max((x.gbps for x in graph.links), default=Fraction(0))
        level: dict[int, tuple[Fraction, tuple[int, ...]]] = {source: (widest, ())}
        seen = {source}
        while level:
            reached: dict[int, tuple[Fraction, tuple[int, ...]]] = {}
            for vertex, (width, way) in sorted(level.items()):
                if vertex in graph.ranks and vertex != source:
                    continue
                for link, to in out[vertex]:
                    wide = min(width, graph.links[link].gbps)
                    if to not in seen and (to not in reached or wide > reached[to][0]):
                        reached[to] = (wide, (*way, link))
            seen |= set(reached)
            found |= {(source, v): path for v, (_, path) in reached.items() if v in graph.ranks}
            level = reached
    return found


def phases(
    paths: Paths, collective: Collective, up: Iterable[Edge], down: Iterable[Edge]
) -> tuple[tuple[Hop, ...], tuple[Hop, ...]]:
    """The hops of the phases that the collective has, along `up` (child, parent) and `down` (parent, child).

    Raises:
        PackingError: an edge has no path.
    """
    return (
        tuple(_hop(paths, edge) for edge in up) if collective.reduces else (),
        tuple(_hop(paths, edge) for edge in down) if collective.spreads else (),
    )


def along_ring(order: Sequence[int]) -> tuple[list[Edge], list[Edge]]:
    """(child, parent) along a ring into its first, and (parent, child) from there to the one before it."""
    return along([*order[1:], order[0]]), along(order)


def along(way: Sequence[int]) -> list[Edge]:
    """Each of a way with the next."""
    return list(itertools.pairwise(way))


def _hop(paths: Paths, edge: Edge) -> Hop:
    if edge not in paths:
        raise PackingError(f"ranks {edge[0]} and {edge[1]} have no direct path")
    return Hop(*edge, paths[edge])
