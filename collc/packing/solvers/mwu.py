"""Multiplicative weights (Blink, MLSys 2020, section 3.2; Garg and Koenemann 1998): finds a packing with a proven gap.

Every link has a length that grows exponentially with its use. Each round packs a cheapest tree of every root under
these lengths. The lengths also serve as prices: the best bound that they prove in any round is the certificate.
"""

from __future__ import annotations

import math
from fractions import Fraction

from collc.errors import PackingError
from collc.packing.solvers.columns import Column
from collc.packing.solvers.effort import Effort
from collc.packing.solvers.exact import Problem, Solution, problem_bound
from collc.packing.solvers.floats import FeasiblePacking, price_bound, scale_to_fit
from collc.packing.solvers.generate import Generator

# Step sizes of the length update, from coarse to fine. There is one run for each, until the wanted gap is reached.
_STEPS = (0.3, 0.1, 0.03, 0.01)
_ROUNDS = 1500


def solve_mwu(problem: Problem, servers: tuple[str, ...], gap: float = 0.01, effort: float = math.inf) -> Solution:
    """Returns a packing of at least (1 - gap) of the optimum if the rounds suffice, with its proven bound.

    Args:
        gap: the wanted gap, as a fraction of the bound.
        effort: the budget in units of `Effort`. At least one round is done.

    Raises:
        PackingError: some rank cannot be reached.
    """
    problem.net.require_connected()
    generator = problem.generator()
    bound, certificate = problem_bound(problem, servers)
    best: FeasiblePacking | None = None
    left = Effort(effort)
    for step in _STEPS:
        weights, prices = _run(generator, step, float(bound * generator.scale), gap, left)
        found = scale_to_fit(generator, weights)
        if best is None or found.rate > best.rate:
            best = found
        proven = price_bound(generator, prices)
        if proven is not None and proven[0] < bound:
            bound, certificate = proven
        if best.rate >= bound * Fraction(1 - gap) or left.left <= 0:
            break
    assert best is not None
    return Solution(best.rate, bound, best.weights, certificate, problem.symmetry)


def _run(
    generator: Generator, step: float, bound: float, gap: float, effort: Effort
) -> tuple[dict[Column, float], list[float]]:
    """Returns (columns with weights, the row prices with the best bound) after at most _ROUNDS rounds."""
    caps = [float(c) for c in generator.caps]
    length = [1.0 / c for c in caps]
    used = [0.0] * len(caps)
    weight: dict[Column, float] = {}
    best, best_prices = float("inf"), list(length)
    total = 0.0
    for turn in range(_ROUNDS):
        cheapest: dict[int, tuple[float, Column]] = {}
        effort.left -= generator.oracle.effort(None)
        for priced in generator.oracle.cheapest(generator.link_prices(length)):
            group = priced.column.group
            if group not in cheapest or priced.cost < cheapest[group][0]:
                cheapest[group] = float(priced.cost), priced.column
        if len(cheapest) < generator.ngroups:
            raise PackingError("some GPU cannot be reached")
        unit = sum(cost * generator.shares[g] for g, (cost, _) in cheapest.items()) / generator.factor
        value = sum(c * y for c, y in zip(caps, length, strict=True)) / unit
        if value < best:
            best, best_prices = value, list(length)
        load = [0.0] * len(caps)
        for group, (_, column) in cheapest.items():
            for row, times in generator.row_loads(column).items():
                load[row] += times * generator.shares[group] / generator.factor
        amount = min(c / x for c, x in zip(caps, load, strict=True) if x)
        for group, (_, column) in cheapest.items():
            weight[column] = weight.get(column, 0.0) + amount * generator.shares[group]
        total += amount
        for row, x in enumerate(load):
            if x:
                used[row] += x * amount
                length[row] *= 1.0 + step * x * amount / caps[row]
        top = max(length)
        if top > 1e100:
            length = [y / top for y in length]
        reached = total / max(u / c for u, c in zip(used, caps, strict=True))
        if effort.left <= 0 or (turn % 8 == 7 and reached >= min(best, bound) * (1 - gap / 2)):
            break
    return weight, best_prices
