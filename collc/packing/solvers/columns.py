"""Columns of the packing LP (trees, pairs of trees, or sets of paths), their loads on links, and their pricing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from collc.packing.solvers.arborescence import cheapest_arborescence
from collc.packing.solvers.dense import DenseDistances, dense_arborescence, dense_shallow
from collc.packing.solvers.enumerate import shallow_trees
from collc.packing.solvers.network import Distances, Net, Out, Path, T, exact_distances
from collc.packing.solvers.shallow import EXACT_LIMIT, shallow_arborescence
from collc.packing.solvers.sparse import SparseTrees, sparse_eccentricity

# Returns a cheap tree from a root and its cost, or None.
Make = Callable[[int], "tuple[Out, int | float] | None"]

# Nets with more ranks are priced with numpy. Up to _BOTH_UNTIL ranks the cheapest tree of any depth is tried before the
# heuristic for shallow trees.
DENSE_FROM = 16
_BOTH_UNTIL = 64
# Nets with more ranks have no matrix of all pairs of ranks: only shallow trees are grown, and prices prove nothing.
SPARSE_FROM = 1024


@dataclass(frozen=True)
class Column:
    """An out-tree from `root` on the net, and for all_reduce `back`, an out-tree on the reversed net.

    Columns are equal if their hops and paths are. `group` is the group row of the master LP that the column serves.
    """

    group: int
    root: int
    out: Out
    back: Out = ()

    def loads(self) -> dict[int, int]:
        """Returns link -> the number of hops that cross it."""
        count: dict[int, int] = {}
        for hops in (self.out, self.back):
            for _, _, path in hops:
                for link in path:
                    count[link] = count.get(link, 0) + 1
        return count

    def depth(self) -> int:
        """Returns the number of hops from the root to the farthest rank, in the deeper tree."""
        return max(_depth(self.out), _depth(self.back))


@dataclass(frozen=True)
class PricedColumn:
    """A column and its cost per unit of weight under the prices that it was made for."""

    column: Column
    cost: int | float


def _depth(hops: Out) -> int:
    level: dict[int, int] = {}
    for parent, child, _ in hops:
        level[child] = level.get(parent, 0) + 1
    return max(level.values(), default=0)


def out_tree(parent: Sequence[int], root: int, path: Callable[[int, int], Path]) -> Out:
    """Returns the hops of an arborescence, breadth first, with children in rank order.

    Args:
        parent: the parent of every vertex, -1 for the root.
        path: returns the links of a hop.
    """
    return tuple((u, v, path(u, v)) for u, v, _ in _edges(parent, root))


def _edges(parent: Sequence[int], root: int) -> Out:
    """Returns the edges of an arborescence as hops with empty paths, breadth first."""
    children: list[list[int]] = [[] for _ in parent]
    for v, p in enumerate(parent):
        if p >= 0:
            children[p].append(v)
    edges: list[tuple[int, int, Path]] = []
    queue = [root]
    for u in queue:
        edges += [(u, v, ()) for v in children[u]]
        queue += children[u]
    return tuple(edges)


class Oracle(Protocol):
    """Makes the columns of one collective on one net."""

    net: Net
    ngroups: int

    @property
    def sparse(self) -> bool:
        """True if the net is so large that only shallow trees are priced, and only in floats."""

    def cheapest(self, prices: Sequence[float], depth: int | None = None) -> list[PricedColumn]:
        """Returns at least a cheapest column of every group under float prices.

        Args:
            depth: if not None, return cheap columns of at most this depth instead.
        """

    def cheapest_exact(self, prices: Sequence[Fraction]) -> tuple[list[PricedColumn], int]:
        """Returns a cheapest column of every group under exact prices, with integer costs, and the costs' divisor."""

    def reach(self) -> list[int]:
        """Returns for each root the least depth, in hops, of a tree that spans all ranks."""

    def all_columns(self, depth: int, limit: int) -> list[Column] | None:
        """Returns every column no deeper than `depth`, or None if they are not listed, such as more than `limit`."""

    def effort(self, depth: int | None) -> float:
        """Returns an estimate of the microseconds that one pricing takes, from sizes only."""


class TreeOracle:
    """Prices trees: one group per root (all_gather), a single root (broadcast), or pairs with any root (all_reduce).

    Args:
        net: the outward net, so reduce and reduce_scatter pass the reversed one.
        roots: the roots of trees.
        pairs: price pairs of trees, for both phases of all_reduce.
        mirror: the result of `mirrored_links`. A pair is then one tree in both directions. This is as good as two
            trees, because some optimal prices are equal in both directions.
        any_root: root the tree of such a pair in its center, instead of the root that it was priced for.
    """

    def __init__(
        self,
        net: Net,
        roots: Sequence[int],
        *,
        pairs: bool,
        mirror: Sequence[int] | None = None,
        any_root: bool = True,
    ) -> None:
        assert mirror is None or pairs
        self.any_root = any_root
        self.net, self.roots, self.pairs, self.mirror = net, list(roots), pairs, mirror
        self.ngroups = 1 if pairs else len(self.roots)
        self._turned = net.reversed() if pairs and mirror is None else None

    def cheapest(self, prices: Sequence[float], depth: int | None = None) -> list[PricedColumn]:
        """Returns a cheapest column for every root under float prices; with `depth`, a cheap one of shallow trees."""
        if self.mirror is not None:
            prices = [p + prices[m] for p, m in zip(prices, self.mirror, strict=True)]
        if self.sparse:
            grown = SparseTrees(self.net, prices)
            back_grown = None if self._turned is None else SparseTrees(self._turned, prices)
            return self._columns(
                lambda root: grown.tree(root, depth),
                None if back_grown is None else lambda root: back_grown.tree(root, depth),
            )
        if self.net.nranks > DENSE_FROM:
            dense = DenseDistances(self.net, prices)
            turned = None if self._turned is None else DenseDistances(self._turned, prices)
            return self._columns(
                lambda root: self._dense_tree(dense, root, depth),
                None if turned is None else lambda root: self._dense_tree(turned, root, depth),
                self._priced_roots(depth),
            )
        big = 1.0 + 4.0 * sum(prices) * max(self.net.nverts, 2)
        dist = Distances(self.net, prices, big)
        back = None if self._turned is None else Distances(self._turned, prices, big)
        return self._columns(
            lambda root: self._tree(dist, root, depth),
            None if back is None else lambda root: self._tree(back, root, depth),
        )

    @property
    def sparse(self) -> bool:
        """True if the net is so large that only shallow trees are priced."""
        return self.net.nranks > SPARSE_FROM

    def _priced_roots(self, depth: int | None) -> list[int]:
        """Returns the roots to grow trees from. A tree in both directions costs the same from any root."""
        any_tree = depth is None and self.mirror is not None and self.any_root and self.net.nranks > DENSE_FROM
        return self.roots[:1] if any_tree else self.roots

    def effort(self, depth: int | None) -> float:
        """Returns an estimate of the microseconds that one pricing takes, from sizes only."""
        n = self.net.nranks
        trees = len(self._priced_roots(depth)) * (1 if self._turned is None else 2)
        if self.sparse:
            return trees * 10.0 * self.net.nlinks
        if n > DENSE_FROM:
            return trees * 40.0 * n
        shallow = 0.0 if depth is None else 0.12 * 3.0 ** (n - 1) if n <= EXACT_LIMIT else 12.0 * n * n
        return trees * (2.0 * n * n + shallow)

    def cheapest_exact(self, prices: Sequence[Fraction]) -> tuple[list[PricedColumn], int]:
        """Returns a cheapest column for every root under exact prices, with integer costs, and the costs' divisor."""
        if self.mirror is not None:
            prices = [p + prices[m] for p, m in zip(prices, self.mirror, strict=True)]
        dist, scale = exact_distances(self.net, prices)
        back = None if self._turned is None else exact_distances(self._turned, prices)[0]
        found = self._columns(
            lambda root: self._tree(dist, root, None),
            None if back is None else lambda root: self._tree(back, root, None),
            self._priced_roots(None),
        )
        return found, scale

    def _columns(self, make: Make, back: Make | None, roots: Sequence[int] | None = None) -> list[PricedColumn]:
        found = []
        for i, root in enumerate(self.roots if roots is None else roots):
            out = make(root)
            if out is None:
                continue
            if self.mirror is not None:
                found.append(PricedColumn(self._mirrored(out[0], root, self.mirror), out[1]))
                continue
            if back is None:
                found.append(PricedColumn(Column(i, root, out[0]), out[1]))
                continue
            other = back(root)
            if other is not None:
                found.append(PricedColumn(Column(0, root, out[0], other[0]), out[1] + other[1]))
        return found

    def _tree(self, dist: Distances[T], root: int, depth: int | None) -> tuple[Out, T] | None:
        parent = cheapest_arborescence(dist.cost, root, dist.big)
        if parent is None:
            return None
        hops = out_tree(parent, root, dist.path)
        if depth is not None and _depth(hops) > depth:
            parent = shallow_arborescence(dist.cost, root, depth, float(dist.big))
            if parent is None:
                return None
            hops = out_tree(parent, root, dist.path)
        cost = dist.big - dist.big
        for u, v, _ in hops:
            cost += dist.cost[u][v]
        return hops, cost

    def _dense_tree(self, dist: DenseDistances, root: int, depth: int | None) -> tuple[Out, float] | None:
        parent = None
        if depth is None or self.net.nranks <= _BOTH_UNTIL:
            parent = dense_arborescence(dist.cost, root)
            if parent is not None and depth is not None and _depth(_edges(parent, root)) > depth:
                parent = None
        if parent is None and depth is not None:
            parent = dense_shallow(dist.cost, root, depth)
        if parent is None:
            return None
        hops = out_tree(parent, root, dist.path)
        return hops, float(sum(dist.cost[u, v] for u, v, _ in hops))

    def _mirrored(self, out: Out, root: int, mirror: Sequence[int]) -> Column:
        """Returns the pair of a tree from `root` and its mirror image, which has the same loads from any other root."""
        if self.any_root:
            root = _center(out, self.net.nranks)
            out = _rerooted(out, root, mirror)
        return Column(0, root, out, tuple((u, v, tuple(mirror[x] for x in path)) for u, v, path in out))

    def all_columns(self, depth: int, limit: int) -> list[Column] | None:
        """Returns every column no deeper than `depth`; None if there are more than `limit`.

        Pairs of different trees are not listed either (None).
        """
        if self._turned is not None:
            return None
        found: dict[Column, None] = {}
        for i, root in enumerate(self.roots):
            trees = shallow_trees(self.net, root, depth, limit - (0 if self.mirror else len(found)))
            if trees is None:
                return None
            for hops in trees:
                found[Column(i, root, hops) if self.mirror is None else self._mirrored(hops, root, self.mirror)] = None
        return list(found) if len(found) <= limit else None

    def reach(self) -> list[int]:
        """Returns for each root the least number of hops within which it reaches all ranks.

        For pairs of different trees, all ranks also reach the root within that number of hops.
        """
        ones = [1] * self.net.nlinks
        if self.sparse:
            nets = [v for v in (self.net, self._turned) if v is not None]
            return [max(sparse_eccentricity(v, root) for v in nets) for root in self.roots]
        if self.net.nranks > DENSE_FROM:
            dense = [DenseDistances(v, [1.0] * v.nlinks) for v in (self.net, self._turned) if v is not None]
            return [max(_dense_eccentricity(d, root) for d in dense) for root in self.roots]
        views = [Distances(self.net, ones, self.net.nlinks + 1)]
        if self._turned is not None:
            views.append(Distances(self._turned, ones, self.net.nlinks + 1))
        return [max(_eccentricity(d, root) for d in views) for root in self.roots]


def _eccentricity(dist: Distances[int], root: int) -> int:
    """Returns the number of hops (not links) from `root` to the farthest rank."""
    level = {root: 0}
    queue = [root]
    for u in queue:
        for v, cost in enumerate(dist.cost[u]):
            if cost < dist.big and v not in level:
                level[v] = level[u] + 1
                queue.append(v)
    return max(level.values())


def _dense_eccentricity(dist: DenseDistances, root: int) -> int:
    joined = np.isfinite(dist.cost)
    seen = np.zeros(len(joined), dtype=bool)
    seen[root] = True
    level = 0
    while not seen.all():
        grown = seen | joined[seen].any(axis=0)
        assert not (grown == seen).all(), "the net is connected"
        seen, level = grown, level + 1
    return level


def mirrored_links(net: Net) -> list[int] | None:
    """Returns for every link its partner of equal capacity in the other direction; None if not all links have one."""
    waiting: dict[tuple[int, int, Fraction], list[int]] = {}
    mirror = [-1] * net.nlinks
    for link in range(net.nlinks):
        key = net.tails[link], net.heads[link], net.caps[link]
        turned = waiting.get((key[1], key[0], key[2]))
        if turned:
            other = turned.pop(0)
            mirror[link], mirror[other] = other, link
        else:
            waiting.setdefault(key, []).append(link)
    return mirror if min(mirror, default=0) >= 0 else None


def _neighbors(hops: Out, nranks: int) -> list[list[tuple[int, Path, bool]]]:
    """Returns for each rank its hops as (other end, path of the hop, whether the hop leaves this rank), sorted."""
    near: list[list[tuple[int, Path, bool]]] = [[] for _ in range(nranks)]
    for u, v, path in hops:
        near[u].append((v, path, True))
        near[v].append((u, path, False))
    return [sorted(x) for x in near]


def _center(hops: Out, nranks: int) -> int:
    """Returns the rank of least eccentricity in the tree; of two such ranks, the smaller one."""
    near = _neighbors(hops, nranks)

    def far(start: int) -> tuple[int, list[int]]:
        seen, queue, above = {start: 0}, [start], {start: -1}
        for u in queue:
            for v, _, _ in near[u]:
                if v not in seen:
                    seen[v], above[v] = seen[u] + 1, u
                    queue.append(v)
        way, v = [], queue[-1]
        while v >= 0:
            way.append(v)
            v = above[v]
        return queue[-1], way

    end, _ = far(0)
    _, way = far(end)
    middle = len(way) // 2
    return way[middle] if len(way) % 2 else min(way[middle], way[middle - 1])


def _rerooted(hops: Out, root: int, mirror: Sequence[int]) -> Out:
    """Returns the same tree as an out-tree from `root`. Hops that are turned round use the mirrored links."""
    near = _neighbors(hops, nranks=len(hops) + 1)
    done, queue, result = {root}, [root], []
    for u in queue:
        for v, path, leaves in near[u]:
            if v not in done:
                done.add(v)
                queue.append(v)
                result.append((u, v, path if leaves else tuple(mirror[x] for x in reversed(path))))
    return tuple(result)
