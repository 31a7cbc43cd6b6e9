"""Grows trees for thousands of ranks along the links, without a matrix of all pairs, which would take gigabytes.

The trees only propose columns, which get exact weights later. The algorithm is the one of `dense_shallow`: Prim's
growth, which prefers shallow parents at equal cost, then better parents for the leaves. This is our own code because
its Dijkstra search gets new sources while it runs, which libraries do not allow.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from collc.packing.solvers.network import Net, Out, Path

# A path from a rank of the tree, as its last link and the path before it.
_Way = tuple[int, "_Way"] | tuple[()]
# (cost, level of the first rank, first rank, path)
_Offer = tuple[float, int, int, _Way]


class SparseTrees:
    """Finds cheap shallow out-trees of a net under float prices."""

    def __init__(self, net: Net, prices: Sequence[float]) -> None:
        self._net = net
        # A tiny extra price on every link makes paths with fewer links win.
        trace = 1e-11 * (sum(prices) / max(len(prices), 1) + 1e-300)
        self._prices = [float(p) + trace for p in prices]

    def tree(self, root: int, depth: int | None) -> tuple[Out, float] | None:
        """Returns (a tree of at most `depth` levels of hops, its cost), or None if none is found. Takes O(E log V)."""
        limit = self._net.nranks if depth is None else depth
        found: dict[int, _Offer] = {}
        level = {root: 0}
        self._flood({root: 0}, limit, level, found)
        if len(level) < self._net.nranks:
            return None
        for _ in range(2):
            if not self._reparent(root, limit, level, found):
                break
        return self._hops(root, level, found), sum(offer[0] for offer in found.values())

    def _flood(self, sources: dict[int, int], limit: int, level: dict[int, int], found: dict[int, _Offer]) -> None:
        """Runs Dijkstra's search from all sources at once and records in `found` how each new rank is reached.

        A rank that is not in `level` is added there with its level. If this is below `limit`, it becomes a source.
        """
        net, prices = self._net, self._prices
        n, heads, out = net.nranks, net.heads, net.out
        best: dict[int, tuple[float, int]] = {}
        heap: list[tuple[float, int, int, int, _Way]] = []

        def relax(vertex: int, cost: float, depth: int, source: int, way: _Way) -> None:
            for link in out[vertex]:
                head, total = heads[link], cost + prices[link]
                if head < n and head in level:
                    continue
                if head not in best or (total, depth) < best[head]:
                    best[head] = total, depth
                    heapq.heappush(heap, (total, depth, head, source, (link, way)))

        for source, depth in sources.items():
            relax(source, 0.0, depth, source, ())
        while heap:
            cost, depth, vertex, source, way = heapq.heappop(heap)
            if best[vertex] < (cost, depth):
                continue
            if vertex >= n:
                relax(vertex, cost, depth, source, way)
            elif vertex not in level:
                level[vertex], found[vertex] = depth + 1, (cost, depth, source, way)
                if depth + 1 < limit:
                    relax(vertex, 0.0, depth + 1, vertex, ())

    def _reparent(self, root: int, limit: int, level: dict[int, int], found: dict[int, _Offer]) -> bool:
        """Moves each leaf to its cheapest parent among the vertices with children. Returns whether one moved."""
        # Parents with children do not move, so their levels stay valid.
        busy = {offer[2] for offer in found.values()} | {root}
        sources = {v: level[v] for v in sorted(busy) if level[v] < limit}
        better: dict[int, _Offer] = {}
        # With limit 0 no rank that is reached becomes a source.
        self._flood(sources, 0, {v: level[v] for v in busy}, better)
        moves = {v: offer for v, offer in better.items() if offer[0] < found[v][0]}
        for v, offer in moves.items():
            found[v], level[v] = offer, offer[1] + 1
        return bool(moves)

    def _hops(self, root: int, level: dict[int, int], found: dict[int, _Offer]) -> Out:
        """Returns the hops breadth first, with children in rank order."""
        children: dict[int, list[int]] = {}
        for v in sorted(found):
            children.setdefault(found[v][2], []).append(v)
        hops: list[tuple[int, int, Path]] = []
        queue = [root]
        for u in queue:
            for v in children.get(u, ()):
                hops.append((u, v, _path(found[v][3])))
                queue.append(v)
        return tuple(hops)


def _path(way: _Way) -> Path:
    links = []
    while way:
        links.append(way[0])
        way = way[1]
    return tuple(reversed(links))


def sparse_eccentricity(net: Net, root: int) -> int:
    """Returns the number of hops (not links) from `root` to the farthest rank."""
    seen, level, left = {root}, [root], net.nranks - 1
    count = 0
    while left:
        count += 1
        fresh: list[int] = []
        stack = list(level)
        while stack:
            for link in net.out[stack.pop()]:
                head = net.heads[link]
                if head not in seen:
                    seen.add(head)
                    (fresh if head < net.nranks else stack).append(head)
        assert fresh, "the net is connected"
        left -= len(fresh)
        level = fresh
    return count
