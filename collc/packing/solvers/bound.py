"""Computes the cost of a collective at given link prices, exactly. Bounds of `prices` certificates need it."""

from __future__ import annotations

import math
from fractions import Fraction

from collc.collectives.model import Collective
from collc.packing.solvers.arborescence import arborescence_cost, cheapest_arborescence
from collc.packing.solvers.network import Net, cheapest_paths, exact_distances


def unit_cost(net: Net, price: list[Fraction], collective: Collective, root: int | None) -> Fraction | None:
    """Returns the least cost of one GB/s of `collective` at given link prices; None if a GPU cannot be reached."""
    n = net.nranks
    if collective.inward:
        net = net.reversed()
    if collective.uses_trees:
        costs, scale = _tree_costs(net, price, None if root is None else [root])
        if costs is None:
            return None
        if collective.both_phases:
            back, _ = _tree_costs(net.reversed(), price, None if root is None else [root])
            return None if back is None else Fraction(min(a + b for a, b in zip(costs, back, strict=True)), scale)
        return Fraction(sum(costs), scale * len(costs))
    scale = math.lcm(*(p.denominator for p in price))
    whole = [int(p * scale) for p in price]
    pairs: dict[int, list[int]]
    if root is not None:
        pairs = {root: [v for v in range(n) if v != root]}
    elif collective is Collective.ALLTOALL:
        pairs = {u: [v for v in range(n) if v != u] for u in range(n)}
    else:
        pairs = {u: [(u + 1) % n] for u in range(n)}
    total = 0
    for source, targets in pairs.items():
        reached, _ = cheapest_paths(net, whole, source)
        for target in targets:
            value = reached[target]
            if value is None:
                return None
            total += value
    return Fraction(total, scale if collective is Collective.SENDRECV else scale * n)


def _tree_costs(net: Net, price: list[Fraction], roots: list[int] | None) -> tuple[list[int] | None, int]:
    dist, scale = exact_distances(net, price)
    costs = []
    for root in range(net.nranks) if roots is None else roots:
        parent = cheapest_arborescence(dist.cost, root, dist.big)
        if parent is None:
            return None, scale
        costs.append(arborescence_cost(dist.cost, parent))
    return costs, scale
