"""The graph of a plan, prepared for the solvers: plain lists of integers, and distances between ranks.

`Net` can be reversed: reduce is broadcast on the reversed graph, reduce_scatter is all_gather on it, and link numbers
stay
the same, so every solver below packs out-trees only.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

from collc.errors import PackingError
from collc.topology.graphs import igraph
from collc.topology.model import PlanGraph

T = TypeVar("T", int, float)
Path = tuple[int, ...]
# Hops of an out-tree, parents before children: (parent, child, path).
Out = tuple[tuple[int, int, Path], ...]


@dataclass(frozen=True)
class Net:
    """Directed links as parallel lists. Ranks are the vertices 0..nranks-1; the rest only forward."""

    names: tuple[str, ...]
    nranks: int
    tails: tuple[int, ...]
    heads: tuple[int, ...]
    caps: tuple[Fraction, ...]
    out: tuple[tuple[int, ...], ...]

    @property
    def nverts(self) -> int:
        """The number of vertices; the ranks come first."""
        return len(self.names)

    @property
    def nlinks(self) -> int:
        """The number of directed links."""
        return len(self.tails)

    @classmethod
    def of(cls, graph: PlanGraph) -> Net:
        """The arrays of a plan's graph; capacities in GB/s, exact."""
        return cls.build(
            tuple(v.name for v in graph.vertices),
            graph.nranks,
            tuple(link.src for link in graph.links),
            tuple(link.dst for link in graph.links),
            tuple(link.gbps for link in graph.links),
        )

    @classmethod
    def build(
        cls,
        names: tuple[str, ...],
        nranks: int,
        tails: tuple[int, ...],
        heads: tuple[int, ...],
        caps: tuple[Fraction, ...],
    ) -> Net:
        """The net of these arrays."""
        out: list[list[int]] = [[] for _ in names]
        for link, tail in enumerate(tails):
            out[tail].append(link)
        return cls(names, nranks, tails, heads, caps, tuple(tuple(x) for x in out))

    def reversed(self) -> Net:
        """The same links, each turned round; link numbers keep their meaning."""
        return self.build(self.names, self.nranks, self.heads, self.tails, self.caps)

    def contracted(self, parts: Sequence[Sequence[int]]) -> tuple[Net, list[int]]:
        """Returns the net with each part as one rank, and the number here of every link there.

        Args:
            parts: disjoint vertex sets, each with a rank. Other vertices forward; links inside a part are left out.
        """
        place = {v: i for i, part in enumerate(parts) for v in part}
        rest = [v for v in range(self.nverts) if v not in place]
        place |= {v: len(parts) + i for i, v in enumerate(rest)}
        links = [x for x in range(self.nlinks) if place[self.tails[x]] != place[self.heads[x]]]
        net = self.build(
            tuple(self.names[v] for v in [*(part[0] for part in parts), *rest]),
            len(parts),
            tuple(place[self.tails[x]] for x in links),
            tuple(place[self.heads[x]] for x in links),
            tuple(self.caps[x] for x in links),
        )
        return net, links

    def integer_caps(self) -> tuple[list[int], int]:
        """(caps * scale as integers, scale): the smallest scale that makes every capacity an integer."""
        scale = math.lcm(*(c.denominator for c in self.caps)) if self.caps else 1
        return [int(c * scale) for c in self.caps], scale

    def require_connected(self) -> None:
        """Raises PackingError naming two ranks unless every rank reaches every other one."""
        for net, text in ((self, "cannot reach"), (self.reversed(), "cannot be reached from")):
            seen = net.reach(0)
            for rank in range(self.nranks):
                if rank not in seen:
                    raise PackingError(
                        f"rank 0 ({self.names[0]}) {text} rank {rank} ({self.names[rank]})",
                        hint="choose GPUs that the links join in both directions, or allow more links with --links all",
                    )

    def reach(self, start: int) -> set[int]:
        """Every vertex that a path of links leads to from `start`."""
        arcs = list(zip(self.tails, self.heads, strict=True))
        return set(igraph.Graph(self.nverts, arcs, directed=True).subcomponent(start, mode="out"))


class Distances(Generic[T]):
    """Cheapest hops between ranks, under link prices, through vertices that only forward.

    `cost[u][v]` is the cheapest path of the hop u -> v, `big` where there is none. Prices are integers (exact) or
    floats.
    Among equally cheap paths the one with fewer links wins, then the smaller link numbers.

    Own code: igraph has neither these ties nor integers beyond doubles. For 8 to 16 ranks it takes 4 to 14 times as
    long, because no rank but the source may forward, so that each source needs another graph.
    """

    def __init__(self, net: Net, prices: Sequence[T], big: T) -> None:
        self.big: T = big
        self.cost: list[list[T]] = []
        self._net = net
        self._last: list[list[int]] = []  # [u][v]: last link of the path u -> v, -1 if none
        self._inner: list[dict[int, int]] = []  # [u]: forwarder -> link that the path from u enters it by
        for rank in range(net.nranks):
            self._from(rank, prices)

    def _from(self, source: int, prices: Sequence[T]) -> None:
        net, n, big = self._net, self._net.nranks, self.big
        heads, out = net.heads, net.out
        cost: list[T] = [big] * n
        steps = [0] * n
        last = [-1] * n
        entered: dict[int, int] = {}
        best: dict[int, tuple[T, int]] = {}
        heap: list[tuple[T, int, int, int]] = []
        zero = big - big

        def relax(vertex: int, base: T, hops: int) -> None:
            for link in out[vertex]:
                head, value = heads[link], base + prices[link]
                if head < n:
                    if value < cost[head] or (value == cost[head] and hops < steps[head]):
                        cost[head], steps[head], last[head] = value, hops, link
                elif head not in best or (value, hops) < best[head]:
                    best[head] = (value, hops)
                    heapq.heappush(heap, (value, hops, head, link))

        relax(source, zero, 1)
        while heap:
            value, hops, vertex, link = heapq.heappop(heap)
            if vertex in entered:
                continue
            entered[vertex] = link
            relax(vertex, value, hops + 1)
        cost[source], last[source] = big, -1
        self.cost.append(cost)
        self._last.append(last)
        self._inner.append(entered)

    def path(self, src: int, dst: int) -> Path:
        """The links of the cheapest hop src -> dst."""
        link = self._last[src][dst]
        assert link >= 0, "no such hop"
        links = [link]
        entered = self._inner[src]
        while (vertex := self._net.tails[link]) != src:
            link = entered[vertex]
            links.append(link)
        return tuple(reversed(links))


def exact_distances(net: Net, prices: Sequence[Fraction]) -> tuple[Distances[int], int]:
    """(distances in integers, scale): divide a cost by `scale` to get GB/s-price units back."""
    scale = math.lcm(*(p.denominator for p in prices)) if prices else 1
    whole = [int(p * scale) for p in prices]
    return Distances(net, whole, sum(whole) * max(net.nverts, 2) + 1), scale


def cheapest_paths(net: Net, prices: Sequence[T], source: int) -> tuple[list[T | None], list[int]]:
    """Per vertex the cost of the cheapest path from `source`, and its last link (-1 at the source or where none leads).

    Unlike a hop of a tree such a path may pass through ranks, which then store and forward. Ties: fewer links first.
    Own code for these ties, and because prices may be integers beyond doubles, which igraph does not represent.
    """
    dist: list[T | None] = [None] * net.nverts
    last = [-1] * net.nverts
    zero = prices[0] - prices[0] if prices else 0
    heap: list[tuple[T, int, int, int]] = [(zero, 0, source, -1)]
    while heap:
        value, hops, vertex, link = heapq.heappop(heap)
        if dist[vertex] is not None:
            continue
        dist[vertex], last[vertex] = value, link
        for following in net.out[vertex]:
            if dist[net.heads[following]] is None:
                heapq.heappush(heap, (value + prices[following], hops + 1, net.heads[following], following))
    return dist, last
