"""The exact solver for tree collectives: a bound first, then the shallowest trees that reach it, then a proof.

Order of work: (1) an upper bound from cuts or partitions by maximum flows; (2) trees of the least possible depth: if
their LP
reaches the bound, done; (3) the LP over all trees, which settles the optimum and gives prices where no cut is tight;
(4) the least depth whose LP reaches that optimum; (5) fewer trees at equal rate and depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing.columns import DENSE_FROM, Column, Oracle, TreeOracle, mirrored_links
from collc.packing.cuts import broadcast_cut, gather_cut, reduce_partition
from collc.packing.edmonds import pack_rooted
from collc.packing.effort import Effort, Limits
from collc.packing.generate import Generator, Packing
from collc.packing.model import Certificate, Cut, Partition, Prices
from collc.packing.near import best_so_far, scaled
from collc.packing.network import Net
from collc.packing.symmetry import Symmetry, find_symmetry, no_symmetry
from collc.packing.thin import thinned, thinnest

_SHALLOW_TRIES = 6
# Where only shallow trees are sought: how much deeper than the least depth, in turn. All levels of a fat tree take 6.
_SPARSE_STEPS = (0, 1, 2, 3, 5, 7, 11, 15)
# Diving costs more than packing on larger machines.
_THIN_LIMIT = 16
# If a depth has at most this many trees, all are listed.
_LISTED = 3000
LIST_RANKS = 12
# Up to here the best partition is searched for (a minimum cut per rank); above, only likely ones are tried.
_PARTITION_LIMIT = 64
# Without forwarders, above this many ranks, trees of one root are grown by maximum flows; below, an LP finds shallower
# ones.
_EDMONDS_FROM = 32
# From this many links or ranks on, symmetry is worth its search and the many images of each tree.
_SYMMETRIC_LINKS, _SYMMETRIC_RANKS = 64, 13


@dataclass(frozen=True)
class Solved:
    """Columns with weights on the outward net, and a proven bound."""

    rate: Fraction
    bound: Fraction
    weights: tuple[tuple[Column, Fraction], ...]
    certificate: Certificate
    symmetry: Symmetry


def outward(net: Net, collective: Collective) -> Net:
    """The net on which `collective` is packed as out-trees: turned round where data moves towards roots."""
    return net.reversed() if collective.inward else net


@dataclass(frozen=True)
class Problem:
    """A tree collective on its outward net, up to the symmetry that the solver may use.

    `sizes`, if given, says how many GPUs each rank stands for; the symmetry exchanges only equal ones.
    """

    net: Net
    collective: Collective
    root: int | None
    symmetry: Symmetry
    sizes: tuple[int, ...] = ()

    @property
    def roots(self) -> list[int]:
        """One rank of each orbit that trees may start from."""
        return [self.root] if self.root is not None else sorted(set(self.symmetry.rank_orbit))

    def generator(self) -> Generator:
        """Column generation with one row per orbit of links.

        all_reduce on links that are equal both ways uses one tree for both phases, and one row for both directions.
        """
        per_root = self.collective.per_rank
        pairs = self.collective.both_phases
        mirror = mirrored_links(self.net) if pairs else None
        orbit = list(self.symmetry.link_orbit)
        if mirror is not None:
            # Automorphisms map pairs of mirrored links to such pairs, so two orbits join as a whole.
            orbit = [min(orbit[link], orbit[mirror[link]]) for link in range(len(orbit))]
        number = {link: i for i, link in enumerate(sorted(set(orbit)))}
        rows = [number[link] for link in orbit]
        sizes = self.sizes or (1,) * self.net.nranks
        shares = [sizes[root] * self.symmetry.rank_orbit.count(root) for root in self.roots] if per_root else None
        oracle = TreeOracle(self.net, self.roots, pairs=pairs, mirror=mirror, any_root=self.root is None)
        return Generator(oracle, sum(sizes) if per_root else 1, rows, shares)


def upper_bound(
    net: Net,
    collective: Collective,
    root: int | None,
    probes: Sequence[int] | None = None,
    groups: Sequence[Sequence[int]] = (),
) -> tuple[Fraction, Certificate]:
    """The best bound that a cut or partition proves, on the outward net; exact where switches are balanced.

    Args:
        probes: the ranks that cuts are sought for, one of each orbit; all by default.
        groups: vertex sets to try as the parts of a partition, where the graph is too large to search all.
    """
    if not collective.both_phases:
        value, side = gather_cut(net, probes) if root is None else broadcast_cut(net, root, probes)
        return value, Cut(side)
    best: tuple[Fraction, Certificate] | None = None
    mirrored = mirrored_links(net) is not None
    for view in (net,) if mirrored else (net, net.reversed()):
        value, parts = reduce_partition(view, [set(g) for g in groups], search=net.nranks <= _PARTITION_LIMIT)
        # The proof takes the smaller of leaving and entering, so either direction's partition is a valid bound.
        if best is None or value < best[0]:
            best = value, Partition(tuple(tuple(sorted(p)) for p in parts))
        for side_value, side in _reduce_cuts(view, probes, mirrored):
            if side_value < best[0]:
                best = side_value, Cut(side)
    assert best is not None
    return best


def _reduce_cuts(net: Net, probes: Sequence[int] | None, mirrored: bool) -> list[tuple[Fraction, tuple[int, ...]]]:
    """The least one-way cut from rank 0 (in both views: to and from it) bounds all_reduce where links are one-sided.

    Where all links are equal both ways it is the best partition into two, which the search for partitions looks at.
    Above _PARTITION_LIMIT ranks there is no such search, and only cuts between rank 0 and `probes` or the last rank are
    tried: a GPU or a server that hangs on little is one.
    """
    if mirrored and net.nranks <= _PARTITION_LIMIT:
        return []
    few = probes is not None and net.nranks > _PARTITION_LIMIT
    return [broadcast_cut(net, 0, [*(probes or ()), net.nranks - 1] if few else None)]


def worth_symmetry(nranks: int, nlinks: int) -> bool:
    """Whether a graph is large enough to be solved up to its symmetry."""
    return nlinks >= _SYMMETRIC_LINKS or nranks >= _SYMMETRIC_RANKS


def new_problem(
    net: Net, collective: Collective, root: int | None, servers: Sequence[str], *, symmetric: bool = True
) -> Problem:
    """The problem with its symmetry, which small graphs do without: there, fewer trees matter more."""
    if symmetric and worth_symmetry(net.nranks, net.nlinks):
        return Problem(net, collective, root, find_symmetry(net, servers, root))
    return Problem(net, collective, root, no_symmetry(net))


def solve_exact(problem: Problem, servers: Sequence[str], limits: Limits) -> Solved:
    """An optimal packing of a tree collective, shallow trees first; the best one found if the search hits its limit.

    Args:
        problem: what to pack.
        servers: the server's name of every vertex.
        limits: when to stop.

    Raises PackingError if some rank cannot be reached.
    """
    net = problem.net
    net.require_connected()
    bound, certificate = problem_bound(problem, servers)
    if problem.root is not None and net.nverts == net.nranks > _EDMONDS_FROM:
        weights = pack_rooted(net, problem.root, bound, Effort(math.inf))
        return Solved(bound, bound, weights, certificate, no_symmetry(net))
    generator = problem.generator()
    least = least_depth(generator.oracle)
    # Many ranks: the LP over all trees is slow to settle, a shallow one that reaches the bound is not.
    tries = 1 if net.nranks <= DENSE_FROM else _SHALLOW_TRIES if net.nranks <= _PARTITION_LIMIT else 2 * _SHALLOW_TRIES
    found = None
    generator.effort = limits.proof() if generator.oracle.sparse else limits.wish()
    for step in _SPARSE_STEPS if generator.oracle.sparse else range(tries):
        depth = least + step
        found = _at_depth(generator, depth, bound)
        if found is not None or generator.effort.left < 0:
            break
    if found is None and generator.oracle.sparse:
        return _best_shallow(problem, generator, bound, certificate)
    if found is None:
        generator.effort = limits.proof()
        try:
            generator.seed(None)
            proven = generator.prove(bound)
        except PackingError:
            proven = None
        if proven is None:
            near, (value, prices) = best_so_far(generator)
            if value < bound:
                bound, certificate = value, prices
            return Solved(near.rate, bound, near.weights, certificate, problem.symmetry)
        if proven.prices is not None:
            bound = proven.rate
            certificate = Prices(tuple((i, p) for i, p in enumerate(proven.prices) if p))
        depth, found, generator = _shallowest(problem, proven, least, limits.wish())
    generator.effort = limits.wish()
    if (generator.complete or net.nranks > _THIN_LIMIT) and len(found.weights) > generator.ngroups:
        found = thinnest(generator, found, dives(generator), 2)
    for rounds, choices in () if generator.complete else _thinning(net.nranks, depth):
        if len(found.weights) > generator.ngroups:
            found = thinned(generator, found, depth, rounds, choices)
    return Solved(found.rate, bound, found.weights, certificate, problem.symmetry)


def _best_shallow(problem: Problem, generator: Generator, bound: Fraction, certificate: Certificate) -> Solved:
    """The result with shallow trees, if only cuts and partitions can prove a bound."""
    assert generator.last is not None
    pairs = zip(generator.columns, generator.last.weights, strict=False)
    near = scaled(generator, {column: weight for column, weight in pairs if weight > 0})
    return Solved(near.rate, bound, near.weights, certificate, problem.symmetry)


def problem_bound(problem: Problem, servers: Sequence[str]) -> tuple[Fraction, Certificate]:
    """`upper_bound` with one probe per orbit of ranks and the servers as a likely partition."""
    net = problem.net
    groups: dict[str, list[int]] = {}
    for v in range(net.nverts):
        groups.setdefault(servers[v], []).append(v)
    parts = [g for g in groups.values() if g[0] < net.nranks]
    probes = sorted(set(problem.symmetry.rank_orbit))
    return upper_bound(net, problem.collective, problem.root, probes, parts)


def _thinning(nranks: int, depth: int) -> tuple[tuple[int, int], ...]:
    """(pricing rounds, choices) of each dive; at depth 1 there is one tree per root, up to its paths."""
    if nranks > _THIN_LIMIT or depth == 1:
        return ()
    return ((6, 1), (3, 2)) if nranks <= 10 else ((3, 1),)


def dives(generator: Generator) -> int:
    """How often to dive for fewer trees: what takes a few tenths of a second."""
    size = len(generator.columns) * generator.master.nrows
    return min(16, max(3, 90_000 // size))


def least_depth(oracle: Oracle) -> int:
    """No tree is shallower than its root's eccentricity in hops: of all roots the worst, for all_reduce the best."""
    eccentric = oracle.reach()
    return min(eccentric) if oracle.ngroups == 1 else max(eccentric)


def _at_depth(generator: Generator, depth: int, target: Fraction) -> Packing | None:
    """The best packing of trees no deeper than `depth`, or None if floats already fall short of `target`."""
    every = generator.oracle.all_columns(depth, _LISTED) if generator.net.nranks <= LIST_RANKS else None
    if every is None:
        generator.seed(depth)
    else:
        generator.fill(every)
    try:
        reached = generator.improve(depth, target)
        if reached is None or reached.rate < float(target * generator.scale) * (1 - 1e-7):
            return None
        found = generator.exact()
    except PackingError:
        return None  # less depth is a wish: the search over all trees follows
    return found if found is not None and found.rate == target else None


def _shallowest(problem: Problem, proven: Packing, least: int, effort: Effort) -> tuple[int, Packing, Generator]:
    """The packing of least depth that the search finds at the proven rate; `proven` itself if none is shallower."""
    deepest = max(c.depth() for c, _ in proven.weights)
    for depth in range(least + 1, deepest):
        if effort.left < 0:
            break
        generator = problem.generator()
        generator.effort = effort
        generator.add(c for c, _ in proven.weights if c.depth() <= depth)
        found = _at_depth(generator, depth, proven.rate)
        if found is not None:
            return depth, found, generator
    generator = problem.generator()
    generator.add(c for c, _ in proven.weights)
    return deepest, proven, generator
