"""Flow collectives: gather, scatter, alltoall and sendrecv as multi-commodity flows, exact by column generation.

A column is one source's cheapest paths to all its targets, so a basis has no more rows than links plus sources
(Dantzig and
Wolfe 1960, with the sources as blocks). gather is scatter on the reversed net.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from collc.errors import PackingError
from collc.packing.columns import Column, Priced
from collc.packing.generate import Generator
from collc.packing.model import Collective, Flow, Prices
from collc.packing.network import Net, T, cheapest_paths


class FlowOracle:
    """Cheapest paths from each source to its targets; sources are the groups.

    Paths run through any vertex: where one passes through a rank, that rank stores and forwards.
    """

    def __init__(self, net: Net, targets: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        self.net, self.targets = net, list(targets)
        self.ngroups = len(self.targets)

    def cheapest(self, prices: Sequence[float], depth: int | None = None) -> list[Priced]:
        """A cheapest column of every source."""
        return self._columns(prices)

    def cheapest_exact(self, prices: Sequence[Fraction]) -> tuple[list[Priced], int]:
        """The same under exact prices: (columns with integer costs, scale to divide the costs by)."""
        scale = math.lcm(*(p.denominator for p in prices))
        return self._columns([int(p * scale) for p in prices]), scale

    def reach(self) -> list[int]:
        """Paths have no depth."""
        return [1] * self.ngroups

    def all_columns(self, depth: int, limit: int) -> list[Column] | None:
        """Never listed: paths are priced."""
        return None

    def _columns(self, prices: Sequence[T]) -> list[Priced]:
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
            found.append(Priced(Column(group, source, tuple(paths)), total))
        return found

    def _path(self, source: int, target: int, last: Sequence[int]) -> tuple[int, ...]:
        path = []
        while target != source:
            path.append(last[target])
            target = self.net.tails[last[target]]
        return tuple(reversed(path))


def solve_flows(net: Net, collective: Collective, root: int | None) -> tuple[Fraction, tuple[Flow, ...], Prices]:
    """(rate, flows, prices that prove the rate), exact. `net` is the graph itself, not reversed.

    Raises PackingError if some rank cannot be reached.
    """
    net.require_connected()
    n = net.nranks
    outward = net.reversed() if collective is Collective.GATHER else net
    targets: list[tuple[int, tuple[int, ...]]]
    if root is not None:
        targets = [(root, tuple(v for v in range(n) if v != root))]
    elif collective is Collective.ALLTOALL:
        targets = [(u, tuple(v for v in range(n) if v != u)) for u in range(n)]
    else:
        targets = [(u, ((u + 1) % n,)) for u in range(n)]
    generator = Generator(FlowOracle(outward, targets), 1 if collective is Collective.SENDRECV else n)
    generator.seed(None)
    proven = generator.prove()
    if proven is None or proven.prices is None:
        raise PackingError("the exact solver did not settle this graph", where=collective.value)
    weight: dict[tuple[int, int, tuple[int, ...]], Fraction] = {}
    for column, amount in proven.weights:
        for src, dst, path in column.out:
            key = (dst, src, tuple(reversed(path))) if collective is Collective.GATHER else (src, dst, path)
            weight[key] = weight.get(key, Fraction(0)) + amount
    flows = tuple(Flow(src, dst, amount, path) for (src, dst, path), amount in sorted(weight.items()))
    return proven.rate, flows, Prices(tuple((i, p) for i, p in enumerate(proven.prices) if p))
