"""Reachability and shortest paths over the links of a topology, by vertex name.

It does not use igraph, because paths may pass only through some vertices, and because igraph takes 1.4 to 3 times as
long for graphs of this size.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence, Set

from collc.topology.model import Link


def turned(links: Iterable[Link]) -> list[Link]:
    """Returns the links with source and destination exchanged."""
    return [Link(k.dst, k.src, k.kind, k.gbps, k.latency_us, k.lanes) for k in links]


class Adjacency:
    """The outgoing links of every vertex."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._out: dict[str, list[str]] = defaultdict(list)
        for link in links:
            self._out[link.src].append(link.dst)
            self._out.setdefault(link.dst, [])

    def __iter__(self) -> Iterator[str]:
        return iter(self._out)

    def reversed(self) -> Adjacency:
        """Returns the adjacency with source and destination of each link exchanged."""
        reverse = Adjacency(())
        for vertex, others in self._out.items():
            reverse._out.setdefault(vertex, [])
            for other in others:
                reverse._out[other].append(vertex)
        return reverse

    def hops(self, start: str, middle: Set[str]) -> dict[str, int]:
        """Returns the hops to each vertex that `start` reaches through vertices of `middle` only; 0 for `start`."""
        distances = {start: 0}
        todo = deque([start])
        while todo:
            vertex = todo.popleft()
            if vertex != start and vertex not in middle:
                continue
            for other in self._out.get(vertex, ()):
                if other not in distances:
                    distances[other] = distances[vertex] + 1
                    todo.append(other)
        return distances


def reachable(forwards: Adjacency, start: str, middle: Set[str]) -> set[str]:
    """Returns the vertices that `start` reaches through vertices of `middle` only, including `start`."""
    return set(forwards.hops(start, middle))


def strongly_connected(forwards: Adjacency, names: Sequence[str]) -> bool:
    """Returns True if each vertex of `names` reaches all others of them, through any vertices."""
    all_vertices, goals = set(forwards), set(names)
    ways = (forwards, forwards.reversed())
    return all(goals <= reachable(way, names[0], all_vertices) for way in ways)


def on_shortest_paths(links: Sequence[Link], pairs: Sequence[tuple[str, str]], middle: Set[str]) -> list[Link]:
    """Returns the links on any shortest path (in hops) of a pair that passes only through `middle`, in their order."""
    forwards = Adjacency(links)
    backwards = Adjacency(turned(links))
    from_start = {a: forwards.hops(a, middle) for a in dict.fromkeys(a for a, _ in pairs)}
    to_end = {b: backwards.hops(b, middle) for b in dict.fromkeys(b for _, b in pairs)}
    used: set[int] = set()
    for a, b in pairs:
        if b not in from_start[a]:
            continue
        for i, link in enumerate(links):
            inner = (link.src == a or link.src in middle) and (link.dst == b or link.dst in middle)
            is_inside = inner and link.src in from_start[a] and link.dst in to_end[b]
            if is_inside and from_start[a][link.src] + 1 + to_end[b][link.dst] == from_start[a][b]:
                used.add(i)
    return [link for i, link in enumerate(links) if i in used]
