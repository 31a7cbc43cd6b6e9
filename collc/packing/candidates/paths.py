"""Finds shortest paths between ranks, and the hops of candidates along them."""

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
    """Returns (source, destination) -> the links of a path with the fewest links, and among these the widest.

    Paths pass through no other rank, and pairs without a path are absent. Takes O(ranks * links). This is our own code
    because libraries do not break ties by width.
    """
    out: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for each in graph.links:
        out[each.src].append((each.id, each.dst))
    found: Paths = {}
    for source in graph.ranks:
        # Breadth first by levels. Within a level the widest path to each vertex wins, then the first one found.
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
    """Returns the hops of the reduce and of the broadcast phase; a phase that the collective does not have is empty.

    Args:
        up: (child, parent) edges of the reduce phase.
        down: (parent, child) edges of the broadcast phase.

    Raises:
        PackingError: an edge has no path.
    """
    return (
        tuple(_hop(paths, edge) for edge in up) if collective.reduces else (),
        tuple(_hop(paths, edge) for edge in down) if collective.spreads else (),
    )


def along_ring(order: Sequence[int]) -> tuple[list[Edge], list[Edge]]:
    """Returns the edges (child, parent) along a ring into its first rank, and (parent, child) on to its last rank."""
    return along([*order[1:], order[0]]), along(order)


def along(way: Sequence[int]) -> list[Edge]:
    """Returns the edges along a path of ranks."""
    return list(itertools.pairwise(way))


def _hop(paths: Paths, edge: Edge) -> Hop:
    if edge not in paths:
        raise PackingError(f"ranks {edge[0]} and {edge[1]} have no direct path")
    return Hop(*edge, paths[edge])
