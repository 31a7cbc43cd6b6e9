"""Solves gather, scatter, alltoall and sendrecv as multi-commodity flows, exactly, by column generation.

A column is a set of cheapest paths from one source to all its targets, so a basis has at most as many rows as there are
links and sources (Dantzig and Wolfe 1960, with the sources as blocks). gather is scatter on the reversed net.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing.model import Flow, Prices
from collc.packing.solvers.columns import Column, PricedColumn
from collc.packing.solvers.effort import Limits
from collc.packing.solvers.floats import best_so_far
from collc.packing.solvers.generate import Generator
from collc.packing.solvers.network import Net, T, cheapest_paths
from collc.packing.symmetry.groups import Symmetry, find_symmetry, no_symmetry, orbits

# From this many ranks on, alltoall and sendrecv are solved up to symmetry.
_SYMMETRY_FROM = 16
# From _MANY_SOURCES sources on, _SPREAD_ROUNDS rounds of paths are added before the first LP.
_MANY_SOURCES, _SPREAD_ROUNDS = 64, 24


class FlowOracle:
    """Prices cheapest paths from each source to its targets. Each source is a group.

    A path may pass through any vertex. A rank on a path stores and forwards.
    """

    sparse = False

    def __init__(self, net: Net, targets: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        self.net, self.targets = net, list(targets)
        self.ngroups = len(self.targets)

    def cheapest(self, prices: Sequence[float], depth: int | None = None) -> list[PricedColumn]:
        """Returns a cheapest column of every source."""
        return self._columns(prices)

    def cheapest_exact(self, prices: Sequence[Fraction]) -> tuple[list[PricedColumn], int]:
        """Returns a cheapest column of every source under exact prices, with integer costs, and the costs' divisor."""
        scale = math.lcm(*(p.denominator for p in prices))
        return self._columns([int(p * scale) for p in prices]), scale

    def effort(self, depth: int | None) -> float:
        """Returns an estimate of the microseconds that one pricing takes, from sizes only."""
        return 2.0 * self.ngroups * (self.net.nlinks + self.net.nverts)

    def reach(self) -> list[int]:
        """Returns 1 for every source, because paths have no depth."""
        return [1] * self.ngroups

    def all_columns(self, depth: int, limit: int) -> list[Column] | None:
        """Returns None, because paths are priced and never listed."""
        return None

    def _columns(self, prices: Sequence[T]) -> list[PricedColumn]:
        found = []
        for group, (source, targets) in enumerate(self.targets):
            dist, last = cheapest_paths(self.net, prices, source)
            total = prices[0] - prices[0]
            paths = []
            for target in targets:
                cost = dist[target]
                assert cost is not None, "the net is connected"
                total += cost
                paths.append((source, target, self._path(source, target, last)))
            found.append(PricedColumn(Column(group, source, tuple(paths)), total))
        return found

    def _path(self, source: int, target: int, last: Sequence[int]) -> tuple[int, ...]:
        path = []
        while target != source:
            path.append(last[target])
            target = self.net.tails[last[target]]
        return tuple(reversed(path))


def _symmetry(net: Net, collective: Collective, servers: Sequence[str]) -> Symmetry:
    """Returns the symmetry that the LP may use: none for small graphs, nor for gather and scatter, whose LPs are small.

    sendrecv depends on the ring of ranks, so only symmetries that rotate this ring are used.
    """
    n = net.nranks
    if n < _SYMMETRY_FROM or collective.rooted:
        return no_symmetry(net)
    found = find_symmetry(net, servers, None)
    if collective is Collective.SENDRECV:
        turning = [
            g for g in found.generators if all(g.vertices[(v + 1) % n] == (g.vertices[v] + 1) % n for v in range(n))
        ]
        return orbits(net, turning)
    return found


@dataclass(frozen=True)
class FlowSolution:
    """Flows that carry `rate`, and prices that prove `bound`. Both are equal unless the search ended at its limit."""

    rate: Fraction
    bound: Fraction
    flows: tuple[Flow, ...]
    prices: Prices


def solve_flows(
    net: Net, collective: Collective, root: int | None, servers: Sequence[str], limits: Limits
) -> FlowSolution:
    """Returns optimal flows, exact, or the best ones found if the search ends at its limit.

    Larger graphs are solved up to their symmetry: one source of each orbit of ranks, one row per orbit of links.

    Args:
        net: the net in the direction of the data, also for gather.
        servers: the name of the server of every vertex, for the search for symmetry.

    Raises:
        PackingError: some rank cannot be reached.
    """
    net.require_connected()
    n = net.nranks
    outward = net.reversed() if collective.inward else net
    symmetry = _symmetry(outward, collective, servers)
    sources = [root] if root is not None else sorted(set(symmetry.rank_orbit))
    shares = [1 if root is not None else symmetry.rank_orbit.count(u) for u in sources]
    ring = collective is Collective.SENDRECV
    targets = [(u, ((u + 1) % n,) if ring else tuple(v for v in range(n) if v != u)) for u in sources]
    number = {link: i for i, link in enumerate(sorted(set(symmetry.link_orbit)))}
    rows = [number[link] for link in symmetry.link_orbit]
    generator = Generator(FlowOracle(outward, targets), 1 if ring else n, rows, shares)
    generator.effort = limits.proof_effort()
    try:
        generator.seed(None)
        if len(sources) >= _MANY_SOURCES:
            _spread(generator)
        proven = generator.prove()
    except PackingError:
        proven = None
    if proven is not None and proven.prices is not None:
        prices = Prices(tuple((i, p) for i, p in enumerate(proven.prices) if p))
        return FlowSolution(proven.rate, proven.rate, _flows(proven.weights, collective, symmetry), prices)
    near, (bound, prices) = best_so_far(generator)
    return FlowSolution(near.rate, bound, _flows(near.weights, collective, symmetry), prices)


def _spread(generator: Generator) -> None:
    """Adds first paths of every source, with prices of links that grow with their load.

    The LP prices one bottleneck at a time, so its prices would improve only one source in each round.
    """
    length = [1.0 / c for c in generator.caps]
    for _ in range(_SPREAD_ROUNDS):
        generator.effort.spend(generator.oracle.effort(None))
        found = [priced.column for priced in generator.oracle.cheapest(generator.link_prices(length))]
        generator.add(found)
        load = [0.0] * len(length)
        for column in found:
            for row, times in generator.row_loads(column).items():
                load[row] += times * generator.shares[column.group]
        use = [x / c for x, c in zip(load, generator.caps, strict=True)]
        length = [y * (1 + u / (2 * max(use))) for y, u in zip(length, use, strict=True)]


def _flows(weights: Sequence[tuple[Column, Fraction]], collective: Collective, symmetry: Symmetry) -> tuple[Flow, ...]:
    """Returns the flows of all images of the columns."""
    weight: dict[tuple[int, int, tuple[int, ...]], Fraction] = {}
    elements = symmetry.elements()
    for column, total in weights:
        for part, vertex, link in elements:
            amount = total * part
            for src, dst, path in column.out:
                a, b, way = vertex[src], vertex[dst], tuple(map(link.__getitem__, path))
                key = (b, a, way[::-1]) if collective.inward else (a, b, way)
                weight[key] = weight.get(key, Fraction(0)) + amount
    return tuple(Flow(src, dst, amount, path) for (src, dst, path), amount in sorted(weight.items()))
