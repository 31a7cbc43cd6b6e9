"""The exact solver for tree collectives.

Its steps: (1) compute an upper bound from cuts or partitions by maximum flows; (2) solve the LP over trees of the least
possible depth, and of slightly larger depths, and stop if it reaches the bound; (3) else solve the LP over all trees,
which gives the optimum, and prices if no cut is tight; (4) search the least depth whose LP reaches that optimum;
(5) search fewer trees at equal rate and depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing.model import Certificate, Cut, Partition, Prices
from collc.packing.solvers.columns import DENSE_FROM, Column, Oracle, TreeOracle, mirrored_links
from collc.packing.solvers.cuts import broadcast_cut, gather_cut, listed_partition, reduce_partition
from collc.packing.solvers.dive import best_dive, dive_for_fewer_trees
from collc.packing.solvers.edmonds import pack_rooted
from collc.packing.solvers.effort import Effort, Limits
from collc.packing.solvers.floats import best_so_far, scale_to_fit
from collc.packing.solvers.generate import Generator, Packing
from collc.packing.solvers.network import Net
from collc.packing.symmetry.groups import Symmetry, find_symmetry, no_symmetry

_SHALLOW_TRIES = 6
# Depths to try on nets above SPARSE_FROM ranks, relative to the least depth, in this order. All levels of a fat tree
# take 6 hops.
_SPARSE_STEPS = (0, 1, 2, 3, 5, 7, 11, 15)
# Above this number of ranks, dives that price new columns cost more than the packing.
_THIN_LIMIT = 16
# All trees of a depth are listed if there are at most this many and the net has at most LIST_RANKS ranks.
_LISTED = 3000
LIST_RANKS = 12
# Up to this many ranks the best partition is searched (a minimum cut per rank); above, only likely ones are tried.
_PARTITION_LIMIT = 64
# Above this many ranks, if nothing only forwards, trees of one root are grown by maximum flows. Below, an LP finds
# shallower trees.
_EDMONDS_FROM = 32
# From this many links or ranks on, symmetry is used: there, it saves more than its search and its many trees cost.
_SYMMETRIC_LINKS, _SYMMETRIC_RANKS = 64, 13


@dataclass(frozen=True)
class Solution:
    """Columns of the outward net with weights in GB/s, and a proven bound."""

    rate: Fraction
    bound: Fraction
    weights: tuple[tuple[Column, Fraction], ...]
    certificate: Certificate
    symmetry: Symmetry


def outward(net: Net, collective: Collective) -> Net:
    """Returns the net on which `collective` is packed as out-trees: the reversed net if data moves towards roots."""
    return net.reversed() if collective.inward else net


@dataclass(frozen=True)
class Problem:
    """A tree collective on its outward net, with the symmetry that the solver may use.

    Attributes:
        sizes: the number of GPUs that each rank represents; empty for one each. The symmetry exchanges only ranks of
            equal size.
    """

    net: Net
    collective: Collective
    root: int | None
    symmetry: Symmetry
    sizes: tuple[int, ...] = ()

    @property
    def roots(self) -> list[int]:
        """The root ranks of trees, one of each orbit."""
        return [self.root] if self.root is not None else sorted(set(self.symmetry.rank_orbit))

    def generator(self) -> Generator:
        """Returns a new column generation with one row per orbit of links.

        If links are equal in both directions, all_reduce uses one tree for both phases and one row for both directions.
        """
        per_root = self.collective.per_rank
        pairs = self.collective.both_phases
        mirror = mirrored_links(self.net) if pairs else None
        orbit = list(self.symmetry.link_orbit)
        if mirror is not None:
            # Automorphisms map mirrored pairs of links to mirrored pairs, so whole orbits are merged.
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
    """Returns the least bound in GB/s that a cut or a partition proves, and that certificate.

    The bound is the optimum if every switch has equal capacity in and out and the graph is small enough for a search.

    Args:
        net: the outward net.
        probes: the ranks to separate by cuts, one of each orbit (default: all).
        groups: vertex sets to try as the parts of a partition, for graphs that are too large for a search.
    """
    if not collective.both_phases:
        value, side = gather_cut(net, probes) if root is None else broadcast_cut(net, root, probes)
        return value, Cut(side)
    best: tuple[Fraction, Certificate] | None = None
    mirrored = mirrored_links(net) is not None
    for view in (net,) if mirrored else (net, net.reversed()):
        partition = reduce_partition if net.nranks <= _PARTITION_LIMIT else listed_partition
        value, parts = partition(view, [set(g) for g in groups])
        # The checker uses the smaller of the leaving and the entering capacity, so both directions give valid bounds.
        if best is None or value < best[0]:
            best = value, Partition(tuple(tuple(sorted(p)) for p in parts))
        for side_value, side in _reduce_cuts(view, probes, mirrored):
            if side_value < best[0]:
                best = side_value, Cut(side)
    assert best is not None
    return best


def _reduce_cuts(net: Net, probes: Sequence[int] | None, mirrored: bool) -> list[tuple[Fraction, tuple[int, ...]]]:
    """Returns the least one-way cut from rank 0, which bounds all_reduce. The caller passes both directions of the net.

    If links are equal in both directions, this cut is a partition into two parts, which the search for partitions
    includes, so there is none to return. Above _PARTITION_LIMIT ranks there is no such search. With probes, only cuts
    between rank 0 and a probe or the last rank are then tried, which find a weakly connected GPU or server.
    """
    if mirrored and net.nranks <= _PARTITION_LIMIT:
        return []
    few = probes is not None and net.nranks > _PARTITION_LIMIT
    return [broadcast_cut(net, 0, [*(probes or ()), net.nranks - 1] if few else None)]


def needs_symmetry(nranks: int, nlinks: int) -> bool:
    """Returns whether a graph is large enough to be solved up to its symmetry."""
    return nlinks >= _SYMMETRIC_LINKS or nranks >= _SYMMETRIC_RANKS


def new_problem(
    net: Net, collective: Collective, root: int | None, servers: Sequence[str], *, symmetric: bool = True
) -> Problem:
    """Returns the problem with its symmetry. Small graphs use no symmetry, because fewer trees matter more there."""
    if symmetric and needs_symmetry(net.nranks, net.nlinks):
        return Problem(net, collective, root, find_symmetry(net, servers, root))
    return Problem(net, collective, root, no_symmetry(net))


def solve_exact(problem: Problem, servers: Sequence[str], limits: Limits) -> Solution:
    """Returns an optimal packing that prefers shallow trees, or the best one found if the search ends at a limit.

    Args:
        servers: the name of the server of every vertex.

    Raises:
        PackingError: some rank cannot be reached.
    """
    net = problem.net
    net.require_connected()
    bound, certificate = problem_bound(problem, servers)
    if problem.root is not None and net.nverts == net.nranks > _EDMONDS_FROM:
        weights = pack_rooted(net, problem.root, bound, Effort(math.inf))
        return Solution(bound, bound, weights, certificate, no_symmetry(net))
    generator = problem.generator()
    least = least_depth(generator.oracle)
    # With many ranks the LP over all trees converges slowly, so more shallow depths are tried before it.
    tries = 1 if net.nranks <= DENSE_FROM else _SHALLOW_TRIES if net.nranks <= _PARTITION_LIMIT else 2 * _SHALLOW_TRIES
    found = None
    generator.effort = limits.proof_effort() if generator.oracle.sparse else limits.goal_effort()
    for step in _SPARSE_STEPS if generator.oracle.sparse else range(tries):
        depth = least + step
        found = _at_depth(generator, depth, bound)
        if found is not None or generator.effort.left < 0:
            break
    if found is None and generator.oracle.sparse:
        return _best_shallow(problem, generator, bound, certificate)
    if found is None:
        generator.effort = limits.proof_effort()
        try:
            generator.seed(None)
            proven = generator.prove(bound)
        except PackingError:
            proven = None
        if proven is None:
            near, (value, prices) = best_so_far(generator)
            if value < bound:
                bound, certificate = value, prices
            return Solution(near.rate, bound, near.weights, certificate, problem.symmetry)
        if proven.prices is not None:
            bound = proven.rate
            certificate = Prices(tuple((i, p) for i, p in enumerate(proven.prices) if p))
        depth, found, generator = _shallowest(problem, proven, least, limits.goal_effort())
    generator.effort = limits.goal_effort()
    if (generator.complete or net.nranks > _THIN_LIMIT) and len(found.weights) > generator.ngroups:
        found = best_dive(generator, found, dives(generator), 2)
    for rounds, choices in () if generator.complete else _thinning(net.nranks, depth):
        if len(found.weights) > generator.ngroups:
            found = dive_for_fewer_trees(generator, found, depth, rounds, choices)
    return Solution(found.rate, bound, found.weights, certificate, problem.symmetry)


def _best_shallow(problem: Problem, generator: Generator, bound: Fraction, certificate: Certificate) -> Solution:
    """Returns the last LP's packing of shallow trees with the bound of a cut or partition, for sparse oracles."""
    assert generator.last is not None
    pairs = zip(generator.columns, generator.last.weights, strict=False)
    near = scale_to_fit(generator, {column: weight for column, weight in pairs if weight > 0})
    return Solution(near.rate, bound, near.weights, certificate, problem.symmetry)


def problem_bound(problem: Problem, servers: Sequence[str]) -> tuple[Fraction, Certificate]:
    """Returns `upper_bound` with one probe per orbit of ranks and with servers as a likely partition."""
    net = problem.net
    groups: dict[str, list[int]] = {}
    for v in range(net.nverts):
        groups.setdefault(servers[v], []).append(v)
    parts = [g for g in groups.values() if g[0] < net.nranks]
    probes = sorted(set(problem.symmetry.rank_orbit))
    return upper_bound(net, problem.collective, problem.root, probes, parts)


def _thinning(nranks: int, depth: int) -> tuple[tuple[int, int], ...]:
    """Returns (pricing rounds, choices) of each dive. At depth 1 a root has one tree, apart from its paths."""
    if nranks > _THIN_LIMIT or depth == 1:
        return ()
    return ((6, 1), (3, 2)) if nranks <= 10 else ((3, 1),)


def dives(generator: Generator) -> int:
    """Returns how often to dive for fewer trees, so that all dives take a few tenths of a second."""
    size = len(generator.columns) * generator.master.nrows
    return min(16, max(3, 90_000 // size))


def least_depth(oracle: Oracle) -> int:
    """Returns a lower bound on the depth of a packing, in hops.

    No tree is shallower than the eccentricity of its root. The bound is the largest one over all roots, and the
    smallest if all roots are one group (all_reduce).
    """
    eccentric = oracle.reach()
    return min(eccentric) if oracle.ngroups == 1 else max(eccentric)


def _at_depth(generator: Generator, depth: int, target: Fraction) -> Packing | None:
    """Returns a packing of trees no deeper than `depth` at exactly `target` GB/s, or None if none is found."""
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
        return None  # less depth is optional: the search over all trees follows
    return found if found is not None and found.rate == target else None


def _shallowest(problem: Problem, proven: Packing, least: int, effort: Effort) -> tuple[int, Packing, Generator]:
    """Returns (depth, packing, generator) of least depth at the proven rate; of `proven` if none is shallower."""
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
