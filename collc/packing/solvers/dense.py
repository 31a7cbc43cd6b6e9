"""Computes distances, arborescences and shallow trees on dense float matrices, for many ranks (numpy).

The results only propose columns, which get exact weights later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collc.packing.solvers.network import Net, Path


class DenseDistances:
    """Cheapest hops between all ranks through forwarders, like `Distances` but vectorized over the source rank.

    `cost` is an (N, N) array [source, target]. It is infinite on the diagonal and for pairs without a hop.
    """

    def __init__(self, net: Net, prices: Sequence[float]) -> None:
        n = net.nranks
        self._net = net
        # A tiny extra price on every link makes paths with fewer links win.
        value = np.asarray(prices, dtype=np.float64)
        self._prices = value + 1e-11 * (float(value.mean()) + 1e-300)
        self._reach = np.full((net.nverts, n), np.inf)  # [forwarder, source]
        into: list[list[int]] = [[] for _ in range(net.nverts)]
        for link, head in enumerate(net.heads):
            into[head].append(link)
        self._into = into
        inner = []
        for link, (tail, head) in enumerate(zip(net.tails, net.heads, strict=True)):
            if head >= n:
                if tail < n:
                    self._reach[head, tail] = min(self._reach[head, tail], self._prices[link])
                else:
                    inner.append(link)
        changed = bool(inner)
        while changed:
            changed = False
            for link in inner:
                offer = self._reach[net.tails[link]] + self._prices[link]
                target = self._reach[net.heads[link]]
                if (offer < target).any():
                    np.minimum(target, offer, out=target)
                    changed = True
        rows = np.full((n, n), np.inf)  # [target, source]
        for v in range(n):
            for link in into[v]:
                tail = net.tails[link]
                if tail >= n:
                    np.minimum(rows[v], self._reach[tail] + self._prices[link], out=rows[v])
                else:
                    rows[v, tail] = min(rows[v, tail], self._prices[link])
        np.fill_diagonal(rows, np.inf)
        self.cost = np.ascontiguousarray(rows.T)

    def path(self, src: int, dst: int) -> Path:
        """Returns the links of the cheapest hop src -> dst."""
        net, n = self._net, self._net.nranks
        links: list[int] = []
        at = dst
        while at != src:
            best, arg = np.inf, -1
            for link in self._into[at]:
                tail = net.tails[link]
                if tail == src:
                    value = self._prices[link]
                elif tail >= n:
                    value = self._reach[tail, src] + self._prices[link]
                else:
                    continue
                if value < best:
                    best, arg = value, link
            assert arg >= 0, "no such hop"
            links.append(arg)
            at = net.tails[arg]
        return tuple(reversed(links))


def dense_arborescence(cost: Any, root: int) -> list[int] | None:
    """Returns the parents of a cheapest arborescence, like `cheapest_arborescence`, or None.

    Each round contracts all cycles at once and takes O(n^2) in numpy.
    """
    n = len(cost)
    levels: list[tuple[Any, Any, Any]] = []  # best parents, and the edge (u, v) that each contracted pair represents
    matrix = np.array(cost, dtype=np.float64)
    top = root
    while True:
        size = len(matrix)
        np.fill_diagonal(matrix, np.inf)
        matrix[:, top] = np.inf
        best = np.argmin(matrix, axis=0)
        # The root wins ties, which gives fewer cycles and shallower trees.
        best = np.where(matrix[top] <= matrix[best, np.arange(size)], top, best)
        best[top] = top
        low = matrix[best, np.arange(size)]
        low[top] = 0.0
        if not np.isfinite(low).all():
            return None
        label, count = _labels(best, top)
        if count == size:
            break
        matrix = matrix - np.where(_on_cycle(label, count), low, 0.0)[None, :]
        small, rows, cols = _contract(matrix, label, count)
        levels.append((best, rows, cols))
        matrix, top = small, int(label[top])
    for below, rows, cols in reversed(levels):
        parent = below.copy()
        for target in range(len(best)):
            if best[target] != target:
                source = best[target]
                parent[cols[source, target]] = rows[source, target]
        best = parent
    result = [int(p) for p in best]
    result[root] = -1
    return result if n > 1 else [-1]


def _on_cycle(label: Any, count: int) -> Any:
    return np.bincount(label, minlength=count)[label] > 1


def _labels(best: Any, root: int) -> tuple[Any, int]:
    """Returns new numbers of the vertices, equal for the vertices of a cycle of `best`, and how many there are.

    `best` is the functional graph of parents.
    """
    size = len(best)
    state = [0] * size
    state[root] = 2
    label = [-1] * size
    count = 0
    for start in range(size):
        v, way = start, []
        while state[v] == 0:
            state[v] = 1
            way.append(v)
            v = int(best[v])
        if state[v] == 1:
            for u in way[way.index(v) :]:
                label[u] = count
            count += 1
        for u in way:
            state[u] = 2
    for v in range(size):
        if label[v] < 0:
            label[v] = count
            count += 1
    return np.array(label), count


def _contract(matrix: Any, label: Any, count: int) -> tuple[Any, Any, Any]:
    """Returns the least entry between each two groups of rows and columns, and the original row and column of each."""
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[order], np.arange(count))
    part = matrix[order]
    tall = np.minimum.reduceat(part, starts, axis=0)
    row_of = _argmin_groups(part, starts, order)
    wide = tall[:, order]
    small = np.minimum.reduceat(wide, starts, axis=1)
    col_of = _argmin_groups(wide.T, starts, order).T
    rows = np.take_along_axis(row_of, col_of, axis=1)
    return small, rows, col_of


def _argmin_groups(part: Any, starts: Any, order: Any) -> Any:
    """Returns for each group of rows and each column the original row of the least entry."""
    ends = np.append(starts[1:], len(part))
    found = np.empty((len(starts), part.shape[1]), dtype=np.int64)
    for i, (a, b) in enumerate(zip(starts, ends, strict=True)):
        found[i] = order[a] if b - a == 1 else order[a + np.argmin(part[a:b], axis=0)]
    return found


def dense_shallow(cost: Any, root: int, depth: int) -> list[int] | None:
    """Returns the parents of a cheap tree of at most `depth` levels, or None if the growth finds none.

    Prim's growth, which prefers shallow parents at equal cost, is followed by better parents for the leaves.
    """
    n = len(cost)
    level = np.full(n, depth + 1)
    level[root] = 0
    parent = np.full(n, -1)
    offer = cost[root].copy()
    source = np.full(n, root)
    waiting = np.ones(n, dtype=bool)
    waiting[root] = False
    for _ in range(n - 1):
        v = int(np.argmin(np.where(waiting, offer, np.inf)))
        if not waiting[v] or not np.isfinite(offer[v]):
            return None
        parent[v], level[v] = source[v], level[source[v]] + 1
        waiting[v] = False
        if level[v] < depth:
            better = waiting & ((cost[v] < offer) | ((cost[v] == offer) & (level[v] < level[source])))
            offer = np.where(better, cost[v], offer)
            source = np.where(better, v, source)
    return [int(p) for p in _reparent(cost, parent, level, depth, root)]


def _reparent(cost: Any, parent: Any, level: Any, depth: int, root: int) -> Any:
    """Moves each vertex without children to its cheapest parent above the last level, and returns the parents.

    Parents are the root and vertices with children. There are up to two rounds.
    """
    for _ in range(2):
        busy = np.zeros(len(cost), dtype=bool)
        busy[parent[parent >= 0]] = True
        # Vertices with children do not move, so their levels stay valid.
        fit = busy & (level < depth)
        fit[root] = True
        block = np.where(fit[:, None], cost, np.inf)
        best = np.argmin(block, axis=0)
        moves = ~busy & (block[best, np.arange(len(cost))] < cost[parent, np.arange(len(cost))])
        moves[root] = False
        if not moves.any():
            break
        parent = np.where(moves, best, parent)
        level = np.where(moves, level[best] + 1, level)
    return parent
