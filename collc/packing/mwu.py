"""Multiplicative weights (Blink, MLSys 2020, section 3.2; Garg and Koenemann 1998): a packing with a proven gap.

Every link has a length that grows exponentially with its use. Each round packs a cheapest tree of every root under
these
lengths. The lengths double as prices: the best bound that they ever prove is the certificate.
"""

from __future__ import annotations

from fractions import Fraction

from collc.errors import PackingError
from collc.packing.columns import Column
from collc.packing.exact import Problem, Solved, problem_bound
from collc.packing.generate import Generator
from collc.packing.model import Certificate, Prices

# Steps of the length update, from coarse to fine; each run stops at the wanted gap.
_STEPS = (0.3, 0.1, 0.03, 0.01)
_ROUNDS = 1500
# The weights of a group are multiples of 1/_UNITS of their sum, prices of 1/_UNITS of the largest.
_UNITS = 1 << 20


def solve_mwu(problem: Problem, servers: tuple[str, ...], gap: float = 0.01) -> Solved:
    """A packing of at least (1 - gap) of the optimum where the rounds suffice; the bound says what is proven.

    Raises PackingError if some rank cannot be reached.
    """
    problem.net.require_connected()
    generator = problem.generator()
    bound, certificate = problem_bound(problem, servers)
    best: tuple[Fraction, dict[Column, int]] | None = None
    for step in _STEPS:
        counts, prices = _run(generator, step, float(bound * generator.scale), gap)
        rate = _rate(generator, counts)
        if best is None or rate > best[0]:
            best = rate, counts
        proven = _proven(generator, prices)
        if proven is not None and proven[0] < bound:
            bound, certificate = proven
        if best[0] >= bound * Fraction(1 - gap):
            break
    assert best is not None
    rate, counts = best
    weights = tuple(
        (c, rate * generator.shares[c.group] * Fraction(k, generator.factor * _UNITS)) for c, k in counts.items()
    )
    return Solved(rate, bound, weights, certificate, problem.symmetry)


def _run(generator: Generator, step: float, bound: float, gap: float) -> tuple[dict[Column, int], list[float]]:
    """(columns with integer weights, the prices with the best bound) after at most _ROUNDS rounds."""
    caps = [float(c) for c in generator.caps]
    length = [1.0 / c for c in caps]
    used = [0.0] * len(caps)
    weight: dict[Column, float] = {}
    best, best_prices = float("inf"), list(length)
    total = 0.0
    for turn in range(_ROUNDS):
        cheapest: dict[int, tuple[float, Column]] = {}
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
        if turn % 8 == 7 and reached >= min(best, bound) * (1 - gap / 2):
            break
    return _whole(weight, generator.ngroups), best_prices


def _whole(weight: dict[Column, float], ngroups: int) -> dict[Column, int]:
    """Weights as integers that add up to _UNITS in every group, so that all are multiples of rate / (N * _UNITS)."""
    counts: dict[Column, int] = {}
    for group in range(ngroups):
        members = {c: w for c, w in weight.items() if c.group == group}
        total = sum(members.values())
        counts |= {c: int(w / total * _UNITS) for c, w in members.items()}
        heaviest = max(members, key=lambda c: members[c])
        counts[heaviest] += _UNITS - sum(counts[c] for c in members)
    return {c: k for c, k in counts.items() if k}


def _rate(generator: Generator, counts: dict[Column, int]) -> Fraction:
    """The exact rate when every group's columns share its part in proportion to their counts."""
    load = [Fraction(0)] * len(generator.caps)
    for column, k in counts.items():
        part = Fraction(k * generator.shares[column.group], _UNITS * generator.factor)
        for row, times in generator.row_loads(column).items():
            load[row] += part * times
    return min(Fraction(c) / x for c, x in zip(generator.caps, load, strict=True) if x) / generator.scale


def _proven(generator: Generator, prices: list[float]) -> tuple[Fraction, Certificate] | None:
    """The exact bound of the prices, rounded to integers."""
    top = max(prices)
    whole = [Fraction(round(y / top * _UNITS)) for y in generator.link_prices(prices)]
    cheap, scale = generator.oracle.cheapest_exact(whole)
    unit = generator.unit_cost(cheap) / scale
    if not unit:
        return None
    worth = sum((c * y for c, y in zip(generator.link_caps, whole, strict=True)), Fraction(0)) / generator.scale
    return worth / unit, Prices(tuple((i, y) for i, y in enumerate(whole) if y))
