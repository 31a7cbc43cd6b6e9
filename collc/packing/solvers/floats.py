"""Makes exact packings and bounds from floats: weights scaled until they fit, and the exact bound of given prices.

So a search that ends at its limit still returns a plan with a certified rate and bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from collc.packing.model import Prices
from collc.packing.solvers.columns import Column
from collc.packing.solvers.generate import Generator

# The weights of a group are multiples of 1/UNITS of their sum, and prices are multiples of 1/UNITS of the largest one.
UNITS = 1 << 20


@dataclass(frozen=True)
class FeasiblePacking:
    """A feasible packing: columns with exact weights that carry `rate` GB/s."""

    rate: Fraction
    weights: tuple[tuple[Column, Fraction], ...]


def scale_to_fit(generator: Generator, weights: Mapping[Column, float]) -> FeasiblePacking:
    """Returns the packing of the given weights, rounded and scaled so that groups carry their shares and links suffice.

    Every group needs a column of positive weight.
    """
    counts = _whole(weights, generator.ngroups)
    load = [Fraction(0)] * len(generator.caps)
    for column, k in counts.items():
        part = Fraction(k * generator.shares[column.group], UNITS * generator.factor)
        for row, times in generator.row_loads(column).items():
            load[row] += part * times
    rate = min(Fraction(c) / x for c, x in zip(generator.caps, load, strict=True) if x) / generator.scale
    return FeasiblePacking(
        rate,
        tuple((c, rate * generator.shares[c.group] * Fraction(k, generator.factor * UNITS)) for c, k in counts.items()),
    )


def _whole(weight: Mapping[Column, float], ngroups: int) -> dict[Column, int]:
    """Returns weights as integers that add up to UNITS in every group."""
    counts: dict[Column, int] = {}
    for group in range(ngroups):
        members = {c: w for c, w in weight.items() if c.group == group}
        total = sum(members.values())
        counts |= {c: int(w / total * UNITS) for c, w in members.items()}
        heaviest = max(members, key=lambda c: members[c])
        counts[heaviest] += UNITS - sum(counts[c] for c in members)
    return {c: k for c, k in counts.items() if k}


def price_bound(generator: Generator, prices: list[float]) -> tuple[Fraction, Prices] | None:
    """Returns (the exact bound in GB/s of float row prices, the certificate); None if they prove no bound."""
    top = max(prices, default=0.0)
    if top <= 0:
        return None
    whole = [Fraction(round(y / top * UNITS)) for y in generator.link_prices(prices)]
    cheap, scale = generator.oracle.cheapest_exact(whole)
    unit = generator.unit_cost(cheap) / scale
    if not unit:
        return None
    worth = sum((c * y for c, y in zip(generator.link_caps, whole, strict=True)), Fraction(0)) / generator.scale
    return worth / unit, Prices(tuple((i, y) for i, y in enumerate(whole) if y))


def best_so_far(generator: Generator) -> tuple[FeasiblePacking, tuple[Fraction, Prices]]:
    """Returns (a packing, a bound with its prices) from the last LP that was solved.

    If no LP was solved, or its solution leaves a group without a column, all columns get equal weights. If the prices
    of the LP prove no bound, every link gets the inverse of its capacity as its price.
    """
    if {c.group for c in generator.columns} != set(range(generator.ngroups)):
        generator.seed(None)
    weights, bound = dict.fromkeys(generator.columns, 1.0), None
    if generator.last is not None:
        pairs = zip(generator.columns, generator.last.weights, strict=False)
        found = {column: weight for column, weight in pairs if weight > 0}
        if {c.group for c in found} == set(range(generator.ngroups)):
            weights = found
        bound = price_bound(generator, generator.last.prices)
    if bound is None:
        # Positive prices always prove a bound.
        bound = price_bound(generator, [1.0 / c for c in generator.caps])
        assert bound is not None, "prices above 0 give every tree a positive cost"
    return scale_to_fit(generator, weights), bound
