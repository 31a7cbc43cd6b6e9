"""The graph of a plan in the form that solvers use: arrays of integers, and distances between ranks.

Solvers only pack out-trees. On the reversed `Net`, reduce becomes broadcast and reduce_scatter becomes all_gather, and
link numbers stay the same.
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
    """Directed links as parallel arrays. Vertices 0..nranks-1 are ranks, and all others only forward.

    Attributes:
        tails, heads: the source and the destination of each link.
        caps: the capacity of each link in GB/s.
        out: the links that leave each vertex.
    """

    names: tuple[str, ...]
    nranks: int
    tails: tuple[int, ...]
    heads: tuple[int, ...]
    caps: tuple[Fraction, ...]
    out: tuple[tuple[int, ...], ...]

    @property
    def nverts(self) -> int:
        """The number of vertices."""
        return len(self.names)

    @property
    def nlinks(self) -> int:
        """The number of directed links."""
        return len(self.tails)

    @classmethod
    def of(cls, graph: PlanGraph) -> Net:
        """Returns the net of a plan's graph."""
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
        """Returns the net of these arrays."""
        out: list[list[int]] = [[] for _ in names]
        for link, tail in enumerate(tails):
            out[tail].append(link)
        return cls(names, nranks, tails, heads, caps, tuple(tuple(x) for x in out))

    def reversed(self) -> Net:
        """Returns the net with every link reversed. Link numbers stay the same."""
        return self.build(self.names, self.nranks, self.heads, self.tails, self.caps)

    def contracted(self, parts: Sequence[Sequence[int]]) -> tuple[Net, list[int]]:
        """Returns the net with each part as one rank, and for each of its links the number in this net.

        Args:
            parts: disjoint vertex sets, each with a rank. Other vertices forward. Links inside a part are left out.
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
        """Returns (caps * scale as integers, scale) for the smallest scale that makes every capacity an integer."""
        scale = math.lcm(*(c.denominator for c in self.caps)) if self.caps else 1
        return [int(c * scale) for c in self.caps], scale

    def require_connected(self) -> None:
        """Checks that every rank reaches every other one.

        Raises:
            PackingError: it does not. The error names two ranks.
        """
        for net, text in ((self, "cannot reach"), (self.reversed(), "cannot be reached from")):
            seen = net.reach(0)
            for rank in range(self.nranks):
                if rank not in seen:
                    raise PackingError(
                        f"rank 0 ({self.names[0]}) {text} rank {rank} ({self.names[rank]})",
                        hint="choose GPUs that the links join in both directions, or allow more links with --links all",
                    )

    def reach(self, start: int) -> set[int]:
        """Returns every vertex that a path of links from `start` reaches, including `start`."""
        arcs = list(zip(self.tails, self.heads, strict=True))
        return set(igraph.Graph(self.nverts, arcs, directed=True).subcomponent(start, mode="out"))


class Distances(Generic[T]):
    """Cheapest hops between ranks under link prices, through vertices that only forward.

    `cost[u][v]` is the cost of the cheapest path of the hop u -> v, or `big` if there is none. Prices are integers
    (exact) or floats. Among equally cheap paths the path with fewer links wins, then smaller numbers of vertices and
    links.

    This is our own code because igraph has neither these ties nor integers beyond doubles. For 8 to 16 ranks igraph
    takes 4 to 14 times as long: only the source rank may forward, so that each source needs another graph.
    """

    def __init__(self, net: Net, prices: Sequence[T], big: T) -> None:
        self.big: T = big
        self.cost: list[list[T]] = []
        self._net = net
        self._last: list[list[int]] = []  # [u][v]: the last link of the path u -> v, -1 if there is none
        self._inner: list[dict[int, int]] = []  # [u]: forwarder -> the last link of the path from u to it
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
        """Returns the links of the cheapest hop src -> dst."""
        link = self._last[src][dst]
        assert link >= 0, "no such hop"
        links = [link]
        entered = self._inner[src]
        while (vertex := self._net.tails[link]) != src:
            link = entered[vertex]
            links.append(link)
        return tuple(reversed(links))


def exact_distances(net: Net, prices: Sequence[Fraction]) -> tuple[Distances[int], int]:
    """Returns (distances in integers, scale). A cost divided by `scale` has the unit of the prices."""
    scale = math.lcm(*(p.denominator for p in prices)) if prices else 1
    whole = [int(p * scale) for p in prices]
    return Distances(net, whole, sum(whole) * max(net.nverts, 2) + 1), scale


def cheapest_paths(net: Net, prices: Sequence[T], source: int) -> tuple[list[T | None], list[int]]:
    """Returns for each vertex the cost of the cheapest path from `source`, and its last link (-1 at the source).

    A vertex that no path reaches has cost None and link -1. Unlike a hop of a tree, such a path may pass through ranks,
    which store and forward. Among equally cheap paths the path with fewer links wins. This is our own code because of
    these ties, and because prices may be integers beyond doubles, which igraph does not represent.
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
