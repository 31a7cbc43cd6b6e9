"""Reachability and shortest paths over the links of a topology, by vertex name.

Own code: paths may pass through some vertices only, and with graphs this small igraph takes 1.4 to 3 times as long.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence, Set

from collc.topology.model import Link


def turned(links: Iterable[Link]) -> list[Link]:
    """The links, each turned round."""
    return [Link(k.dst, k.src, k.kind, k.gbps, k.latency_us, k.lanes) for k in links]


class Adjacency:
    """Outgoing links of every vertex."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._out: dict[str, list[str]] = defaultdict(list)
        for link in links:
            self._out[link.src].append(link.dst)
            self._out.setdefault(link.dst, [])

    def __iter__(self) -> Iterator[str]:
        return iter(self._out)

    def reversed(self) -> Adjacency:
        """The same links, each turned round."""
        turned = Adjacency(())
        for vertex, others in self._out.items():
            turned._out.setdefault(vertex, [])
            for other in others:
                turned._out[other].append(vertex)
        return turned

    def hops(self, start: str, middle: Set[str]) -> dict[str, int]:
        """Hops from `start` to all that it reaches through vertices of `middle` only; `start` itself is at 0."""
        found = {start: 0}
        todo = deque([start])
        while todo:
            vertex = todo.popleft()
            if vertex != start and vertex not in middle:
                continue
            for other in self._out.get(vertex, ()):
                if other not in found:
                    found[other] = found[vertex] + 1
                    todo.append(other)
        return found


def reachable(forwards: Adjacency, start: str, middle: Set[str]) -> set[str]:
    """The vertices that `start` reaches through vertices of `middle` only, including itself."""
    return set(forwards.hops(start, middle))


def strongly_connected(forwards: Adjacency, names: Sequence[str]) -> bool:
    """Whether every one of `names` reaches every other one, through any vertices."""
    everything, wanted = set(forwards), set(names)
    ways = (forwards, forwards.reversed())
    return all(wanted <= reachable(way, names[0], everything) for way in ways)


def on_shortest_paths(links: Sequence[Link], pairs: Sequence[tuple[str, str]], middle: Set[str]) -> list[Link]:
    """The links on some path of fewest hops of one of `pairs`, through vertices of `middle`; order is kept."""
    forwards = Adjacency(links)
    backwards = Adjacency(turned(links))
    after = {a: forwards.hops(a, middle) for a in dict.fromkeys(a for a, _ in pairs)}
    before = {b: backwards.hops(b, middle) for b in dict.fromkeys(b for _, b in pairs)}
    used: set[int] = set()
    for a, b in pairs:
        if b not in after[a]:
            continue
        for i, link in enumerate(links):
            inner = (link.src == a or link.src in middle) and (link.dst == b or link.dst in middle)
            known = inner and link.src in after[a] and link.dst in before[b]
            if known and after[a][link.src] + 1 + before[b][link.dst] == after[a][b]:
                used.add(i)
    return [link for i, link in enumerate(links) if i in used]
