"""Trees for thousands of ranks, grown along the links: no matrix of all pairs, which would take gigabytes.

They only propose columns; whatever they find is weighed in exact arithmetic afterwards. The tree is that of
`dense_shallow`: Prim's growth, at equal cost under shallow parents, then better parents for the leaves. Own code: its
Dijkstra search gets new sources while it runs, which libraries do not allow.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from collc.packing.network import Net, Out, Path

# A way from a rank of the tree: its last link, and the way before it.
_Way = tuple[int, "_Way"] | tuple[()]
# (cost, level of the rank that it starts from, that rank, the way)
_Offer = tuple[float, int, int, _Way]


class SparseTrees:
    """Cheap shallow out-trees of a net under float prices."""

    def __init__(self, net: Net, prices: Sequence[float]) -> None:
        self._net = net
        # A trace of a price on every link makes paths with fewer links win.
        trace = 1e-11 * (sum(prices) / max(len(prices), 1) + 1e-300)
        self._prices = [float(p) + trace for p in prices]

    def tree(self, root: int, depth: int | None) -> tuple[Out, float] | None:
        """(a tree of at most `depth` levels of hops, its cost); None if the growth finds no such tree. O(E log V)."""
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
        """Dijkstra from all sources at once; a rank that is not in `level` joins there and is a source from then on."""
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
        """Each leaf moves to its cheapest parent among the vertices with children; False if none moved."""
        # Parents that have children already stay where they are, so their levels hold.
        busy = {offer[2] for offer in found.values()} | {root}
        sources = {v: level[v] for v in sorted(busy) if level[v] < limit}
        better: dict[int, _Offer] = {}
        # No vertex that joins here is a source: the limit is the level of the first.
        self._flood(sources, 0, {v: level[v] for v in busy}, better)
        moves = {v: offer for v, offer in better.items() if offer[0] < found[v][0]}
        for v, offer in moves.items():
            found[v], level[v] = offer, offer[1] + 1
        return bool(moves)

    def _hops(self, root: int, level: dict[int, int], found: dict[int, _Offer]) -> Out:
        """Breadth first, children in rank order."""
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
    """Hops, not links, from `root` to the farthest rank."""
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
