"""Shortest paths between ranks, for hops of plans that no solver packs."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from collc.topology.model import PlanGraph

Paths = dict[tuple[int, int], tuple[int, ...]]


def shortest_paths(graph: PlanGraph) -> Paths:
    """(source, destination) -> the links of a path with the fewest links, the widest of those; through no other rank.

    Pairs without one are absent. O(ranks * links).
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
