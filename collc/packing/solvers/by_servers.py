"""Packs the trees of a cluster in two steps: between servers, with each server as one vertex, then inside servers.

A cluster with scattered defects has little symmetry, so an LP over trees of all its GPUs takes minutes. The net of
servers has few vertices, and inside a server the links are usually fast enough for trees of any shape. The bound holds
for the whole cluster, so the result has a proven gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.errors import PackingError
from collc.packing.solvers.columns import Column
from collc.packing.solvers.effort import Effort
from collc.packing.solvers.exact import Problem, Solution, problem_bound
from collc.packing.solvers.floats import best_so_far
from collc.packing.solvers.network import Distances, Net, Out, Path
from collc.packing.symmetry.groups import find_symmetry, no_symmetry
from collc.packing.symmetry.images import Spreader

# Shapes of the tree inside a server, as the parent of the i-th GPU in the order from the GPU where data arrives: a
# star, a binary tree, a chain. A star has the fewest hops in a row, and in a chain every GPU has at most one child.
_SHAPES: tuple[Callable[[int], int], ...] = (lambda i: 0, lambda i: (i - 1) // 2, lambda i: i - 1)

# A tree between servers: its root server, hops on the contracted net, hops on the reversed net for all_reduce.
_Between = tuple[int, Out, Out]


def pack_by_servers(problem: Problem, servers: Sequence[str], effort: Effort) -> Solution | None:
    """Returns a packing with a bound; None if there is only one server, or a server without paths between its GPUs.

    Args:
        problem: a tree collective on its outward net.
        servers: the name of the server of every vertex.
        effort: the budget for the trees between servers. When it ends, the best trees so far are used.
    """
    net = problem.net
    parts = _parts(net, servers)
    if len(parts) < 2:
        return None
    bound, certificate = problem_bound(problem, servers)
    between = _between(problem, parts, effort)
    best: Solution | None = None
    for shape in _SHAPES:
        packing = _whole(problem, parts, between, shape)
        if packing is None:
            continue
        rate, weights = packing
        if best is None or rate > best.rate:
            best = Solution(rate, bound, weights, certificate, no_symmetry(net))
        if rate >= bound:
            break
    return best


def _parts(net: Net, servers: Sequence[str]) -> list[list[int]]:
    """Returns the vertices of each server that has ranks, ranks first."""
    found: dict[str, list[int]] = {servers[rank]: [] for rank in range(net.nranks)}
    for v in range(net.nverts):
        if servers[v] in found:
            found[servers[v]].append(v)
    return list(found.values())


def _between(problem: Problem, parts: Sequence[Sequence[int]], effort: Effort) -> list[tuple[_Between, Fraction]]:
    """Returns trees between servers with weights. Links have their numbers of the whole net."""
    net = problem.net
    small, links = net.contracted(parts)
    sizes = tuple(sum(v < net.nranks for v in part) for part in parts)
    root = None if problem.root is None else next(i for i, part in enumerate(parts) if problem.root in part)
    symmetry = find_symmetry(small, [*(f"server{i}" for i in range(len(parts))), *[""] * small.nverts], root)
    if any(sizes[rank] != sizes[other] for rank, other in enumerate(symmetry.rank_orbit)):
        symmetry = no_symmetry(small)
    generator = Problem(small, problem.collective, root, symmetry, sizes).generator()
    generator.effort = effort
    try:
        generator.seed(None)
        generator.improve(None, None)
        exact = generator.exact()
    except PackingError:
        exact = None
    weights = best_so_far(generator)[0].weights if exact is None else exact.weights
    spreader = Spreader(symmetry, small.nverts)
    found: dict[_Between, Fraction] = {}
    for column, total in weights:
        for share, vertex, link in spreader.elements(column):

            def image(hops: Out, vertex: Sequence[int] = vertex, link: Sequence[int] = link) -> Out:
                return tuple((vertex[u], vertex[v], tuple(links[link[x]] for x in path)) for u, v, path in hops)

            tree = vertex[column.root], image(column.out), image(column.back)
            found[tree] = found.get(tree, Fraction(0)) + total * share
    return list(found.items())


def _whole(
    problem: Problem,
    parts: Sequence[Sequence[int]],
    between: Sequence[tuple[_Between, Fraction]],
    shape: Callable[[int], int],
) -> tuple[Fraction, tuple[tuple[Column, Fraction], ...]] | None:
    """Returns (rate in GB/s, trees of all GPUs with weights), scaled so that all links can carry them.

    Returns None if two GPUs of a server have no path inside it.
    """
    net = problem.net
    inside = _Inside(net, parts, shape)
    back = _Inside(net.reversed(), parts, shape) if problem.collective.both_phases else None
    rooted = list(_rooted(problem, parts, between))
    # Integers over one denominator are faster, and millions of hops are added up.
    scale = math.lcm(*(weight.denominator for _, weight in rooted))
    load = [0] * net.nlinks
    found: list[tuple[Column, Fraction]] = []
    try:
        for (root, (_, out, turned)), weight in rooted:
            column = Column(0, root, inside.tree(root, out), () if back is None else back.tree(root, turned))
            found.append((column, weight))
            units = weight.numerator * (scale // weight.denominator)
            for _, _, path in (*column.out, *column.back):
                for link in path:
                    load[link] += units
    except _NoPathError:
        return None
    factor = min(scale * cap / units for cap, units in zip(net.caps, load, strict=True) if units)
    total = sum((weight for _, weight in found), Fraction(0))
    return total * factor, tuple((column, weight * factor) for column, weight in found)


def _rooted(
    problem: Problem, parts: Sequence[Sequence[int]], between: Sequence[tuple[_Between, Fraction]]
) -> Iterator[tuple[tuple[int, _Between], Fraction]]:
    """Yields each tree with a rank of its root server as its root, and its weight.

    If the collective has no root, the ranks of a server get equal shares of the weight of its trees.
    """
    nranks = problem.net.nranks
    for server, part in enumerate(parts):
        ranks = [v for v in part if v < nranks] if problem.root is None else [problem.root]
        trees = [(tree, weight) for tree, weight in between if tree[0] == server]
        if not trees:
            continue
        share = sum((weight for _, weight in trees), Fraction(0)) / len(ranks)
        left = share
        for tree, weight in trees:
            while weight:
                now = min(weight, left)
                yield (ranks[0], tree), now
                weight, left = weight - now, left - now
                if not left:
                    ranks, left = ranks[1:] or ranks, share


class _NoPathError(Exception):
    """Raised if two GPUs of a server have no path inside it."""


@dataclass
class _Inside:
    """Trees inside the servers of a net, and the GPUs at the ends of links between servers."""

    net: Net
    parts: Sequence[Sequence[int]]
    shape: Callable[[int], int]

    def __post_init__(self) -> None:
        net = self.net
        self._part = {v: i for i, part in enumerate(self.parts) for v in part}
        self._into: list[list[int]] = [[] for _ in range(net.nverts)]
        for link, head in enumerate(net.heads):
            self._into[head].append(link)
        self._paths: dict[int, dict[tuple[int, int], Path]] = {}
        self._trees: dict[int, Out] = {}
        self._ports: dict[tuple[int, bool], tuple[int, Path]] = {}
        self._uses = [0] * net.nranks

    def tree(self, root: int, hops: Out) -> Out:
        """Returns the tree of all ranks from `root`, parents first: hops between servers, and trees inside servers."""
        found = list(self._local(root))
        for _, _, path in hops:
            src, before = self._port(path[0], leaves=True)
            dst, after = self._port(path[-1], leaves=False)
            found.append((src, dst, (*before, *path, *after)))
            found += self._local(dst)
        return tuple(found)

    def _local(self, start: int) -> Out:
        if start not in self._trees:
            server = self._part[start]
            ranks = [v for v in self.parts[server] if v < self.net.nranks]
            at = ranks.index(start)
            order = [*ranks[at:], *ranks[:at]]
            paths = self._paths_of(server)
            edges = [(order[self.shape(i)], order[i]) for i in range(1, len(order))]
            if any(edge not in paths for edge in edges):
                raise _NoPathError
            self._trees[start] = tuple((u, v, paths[u, v]) for u, v in edges)
        return self._trees[start]

    def _paths_of(self, server: int) -> dict[tuple[int, int], Path]:
        if server not in self._paths:
            part = self.parts[server]
            place = {v: i for i, v in enumerate(part)}
            links = [x for v in part for x in self.net.out[v] if self.net.heads[x] in place]
            own = Net.build(
                tuple(self.net.names[v] for v in part),
                sum(v < self.net.nranks for v in part),
                tuple(place[self.net.tails[x]] for x in links),
                tuple(place[self.net.heads[x]] for x in links),
                tuple(self.net.caps[x] for x in links),
            )
            # Prices prefer paths with the fewest links, then the widest links.
            widest = max(own.caps, default=Fraction(1))
            near = Distances(own, [1.0 + float(widest / cap) * 1e-6 for cap in own.caps], 1e9)
            self._paths[server] = {
                (part[u], part[v]): tuple(links[x] for x in near.path(u, v))
                for u in range(own.nranks)
                for v in range(own.nranks)
                if u != v and near.cost[u][v] < near.big
            }
        return self._paths[server]

    def _port(self, link: int, *, leaves: bool) -> tuple[int, Path]:
        """Returns the GPU nearest to an end of a link between servers (of several, the least used) and the path."""
        key = link, leaves
        if key not in self._ports:
            net = self.net
            start = net.tails[link] if leaves else net.heads[link]
            level: dict[int, Path] = {start: ()}
            seen = {start}
            while level and not any(v < net.nranks for v in level):
                reached: dict[int, Path] = {}
                for v, path in level.items():
                    for x in self._into[v] if leaves else net.out[v]:
                        w = net.tails[x] if leaves else net.heads[x]
                        if w not in seen and self._part.get(w) == self._part[start]:
                            seen.add(w)
                            reached[w] = (x, *path) if leaves else (*path, x)
                level = reached
            ranks = [v for v in level if v < net.nranks]
            if not ranks:
                raise _NoPathError
            best = min(ranks, key=lambda v: (self._uses[v], v))
            self._uses[best] += 1
            self._ports[key] = best, level[best]
        return self._ports[key]
