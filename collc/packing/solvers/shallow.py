"""Finds cheap out-arborescences of limited depth: the pricing step if depth matters.

The cheapest one is NP-hard to find (depth 2 is facility location), but not for few ranks: up to `EXACT_LIMIT` ranks it
is found by dynamic programming over sets. Above, a local search over levels finds a cheap one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

# There are 3^(n-1) pairs of nested sets: 59,049 for 11 ranks, which take about 2 ms for each level of one tree.
EXACT_LIMIT = 11


def shallow_arborescence(cost: Sequence[Sequence[float]], root: int, depth: int, big: float) -> list[int] | None:
    """Returns the parent of every vertex in a cheap arborescence of at most `depth` levels, or None if none is found.

    Up to EXACT_LIMIT vertices it is a cheapest one, and None proves that none exists.

    Args:
        cost: `cost[u][v]` is the cost of the edge u -> v.
        big: costs of at least this mean that there is no such edge.
    """
    matrix = np.asarray(cost, dtype=np.float64)
    matrix = np.where(matrix >= big, np.inf, matrix)
    n = len(matrix)
    order = [root, *(v for v in range(n) if v != root)]
    matrix = matrix[np.ix_(order, order)]
    found = _by_sets(matrix, depth) if n <= EXACT_LIMIT else _by_levels(matrix, depth)
    if found is None:
        return None
    parent = [-1] * n
    for v in range(1, n):
        parent[order[v]] = order[found[v]]
    return parent


@lru_cache(maxsize=4)
def _nested(bits: int) -> tuple[Any, Any, Any]:
    """Returns all pairs of subsets T within S of `bits` elements, sorted by S.

    The arrays are: T of each pair, the first pair of each S, and for each pair the members of S minus T as booleans.
    """
    total: list[int] = []
    outer: list[int] = []
    starts: list[int] = []
    for s in range(1 << bits):
        starts.append(len(total))
        t = s
        while True:
            total.append(t)
            outer.append(s)
            if t == 0:
                break
            t = (t - 1) & s
    inner = np.array(total)
    rest = np.array(outer) & ~inner
    members = ((rest[:, None] >> np.arange(bits)) & 1).astype(bool)
    return inner, np.array(starts), members


def _by_sets(cost: Any, depth: int) -> list[int] | None:
    """Returns the parents of a cheapest arborescence, or None.

    f(l, S) is the cost of the cheapest tree of exactly the root and S within l levels: the minimum over the subsets T
    of S of f(l-1, T) plus the cheapest edges from the root and T to S - T.
    """
    bits = len(cost) - 1
    inner, starts, members = _nested(bits)
    # low[T, v] is the cost of the cheapest edge into v from the root or a member of T.
    low = np.empty((1 << bits, bits))
    low[0] = cost[0, 1:]
    for b in range(bits):
        low[1 << b : 2 << b] = np.minimum(low[: 1 << b], cost[b + 1, 1:])
    step = np.where(members, low[inner], 0.0).sum(axis=1)
    best = np.full(1 << bits, np.inf)
    best[0] = 0.0
    levels = [best]
    for _ in range(depth):
        best = np.minimum.reduceat(best[inner] + step, starts)
        levels.append(best)
    full = (1 << bits) - 1
    if not np.isfinite(best[full]):
        return None
    parent = [-1] * (bits + 1)
    now = full
    ends = np.append(starts[1:], len(inner))
    for level in range(depth, 0, -1):
        span = slice(starts[now], ends[now])
        value = levels[level - 1][inner[span]] + step[span]
        # The first of equal choices has the largest T, so that the lower level has as few edges as possible.
        before = int(inner[span][int(np.argmin(value))])
        above = [0] + [b + 1 for b in range(bits) if before >> b & 1]
        for b in range(bits):
            if (now & ~before) >> b & 1:
                parent[b + 1] = above[int(np.argmin(cost[above, b + 1]))]
        now = before
    return parent


def _by_levels(cost: Any, depth: int) -> list[int] | None:
    """Returns the parents of a cheap arborescence, or None, by a local search that moves one vertex at a time.

    The search assigns levels. Each vertex gets its cheapest parent on a level closer to the root.
    """
    best: tuple[float, Any] | None = None
    for level in _starts(cost, depth):
        value = _descend(cost, level, depth)
        if np.isfinite(value) and (best is None or value < best[0] - 1e-12):
            best = (value, level.copy())
    if best is None:
        return None
    level = best[1]
    parent = [-1] * len(cost)
    for v in range(1, len(cost)):
        parent[v] = int(np.argmin(np.where(level < level[v], cost[:, v], np.inf)))
    return parent


def _starts(cost: Any, depth: int) -> list[Any]:
    """Returns two assignments of levels: by breadth-first search, and by greedy growth along the cheapest edges."""
    n = len(cost)
    bfs = np.full(n, depth)
    bfs[0] = 0
    frontier, at = [0], 0
    seen = np.zeros(n, dtype=bool)
    seen[0] = True
    while frontier and at < depth:
        at += 1
        fresh = np.isfinite(cost[frontier]).any(axis=0) & ~seen
        bfs[fresh] = at
        seen |= fresh
        frontier = [int(v) for v in np.flatnonzero(fresh)]
    greedy = np.full(n, depth)
    greedy[0] = 0
    inside = np.zeros(n, dtype=bool)
    inside[0] = True
    while not inside.all():
        sources = inside & (greedy < depth)
        block = np.where(sources[:, None] & ~inside[None, :], cost, np.inf)
        u, v = np.unravel_index(int(np.argmin(block)), block.shape)
        if not np.isfinite(block[u, v]):
            break
        greedy[v] = greedy[u] + 1
        inside[v] = True
    return [bfs, greedy]


def _descend(cost: Any, level: Any, depth: int) -> float:
    """Moves single vertices to their best level until no move helps. Changes `level` in place and returns the cost."""
    n = len(cost)

    def total() -> float:
        below = level[:, None] < level[None, :]
        return float(np.where(below, cost, np.inf).min(axis=0)[1:].sum())

    value = total()
    for _ in range(2 * n):
        improved = False
        for v in range(1, n):
            old = int(level[v])
            arg, low = old, value
            for candidate in range(1, depth + 1):
                if candidate != old:
                    level[v] = candidate
                    now = total()
                    if now < low - 1e-12:
                        arg, low = candidate, now
            level[v] = arg
            if arg != old:
                value, improved = low, True
        if not improved:
            break
    return value
