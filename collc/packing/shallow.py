"""Cheap out-arborescences of limited depth, the pricing step when depth matters.

Finding the cheapest is NP-hard (depth 2 is facility location), yet few ranks make it easy: exact up to `EXACT_LIMIT`
ranks by
dynamic programming over sets, above that a local search over levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

# 3^(n-1) pairs of nested sets: 59,049 for 11 ranks, about 2 ms for each level of one tree.
EXACT_LIMIT = 11


def shallow_arborescence(cost: Sequence[Sequence[float]], root: int, depth: int, big: float) -> list[int] | None:
    """The parent of every vertex in a cheap arborescence of at most `depth` levels of edges, or None if none was found.

    Exact for up to EXACT_LIMIT vertices (None is then a proof that none exists).
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
    """All pairs T within S of subsets of `bits` elements, sorted by S: (T, start of each S, members of S minus T)."""
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
    """f(l, S): cheapest way to hang exactly S within l levels = min over T in S of f(l-1, T) + edges T -> S-T."""
    bits = len(cost) - 1
    inner, starts, members = _nested(bits)
    # low[T, v]: cheapest edge into v from the root or a member of T.
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
        # Of equal choices take the largest T: as few edges as possible on the lower level.
        before = int(inner[span][int(np.argmin(value))])
        above = [0] + [b + 1 for b in range(bits) if before >> b & 1]
        for b in range(bits):
            if (now & ~before) >> b & 1:
                parent[b + 1] = above[int(np.argmin(cost[above, b + 1]))]
        now = before
    return parent


def _by_levels(cost: Any, depth: int) -> list[int] | None:
    """Local search over levels: every vertex takes its cheapest parent on a lower level; move one vertex at a time."""
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
    """Levels by breadth-first search and by greedy growth from the cheapest edge on."""
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
    """First improvement until no single move helps; changes `level` in place and returns the cost."""
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
