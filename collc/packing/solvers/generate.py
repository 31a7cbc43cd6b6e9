"""Column generation: finds the exact optimum over all trees, or a good packing of shallow ones.

The master LP (lp.py) has few columns. With its prices, the oracle (columns.py) searches for a column that improves the
rate. If there is none, the rate is optimal and the prices prove it. Floats find the basis, rationals decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from collc.packing.solvers.columns import Column, Oracle, PricedColumn
from collc.packing.solvers.effort import Effort
from collc.packing.solvers.lp import ExactSolution, FloatSolution, Master

# In floats, a column counts as an improvement if it is cheaper than its group's price by this fraction.
_LEAST_GAIN = 1e-9
_MAX_ROUNDS = 3000

Price = TypeVar("Price", float, Fraction)


@dataclass(frozen=True)
class Packing:
    """Columns with exact weights and their rate, in GB/s, and exact link prices if these prove the rate (else None)."""

    rate: Fraction
    weights: tuple[tuple[Column, Fraction], ...]
    prices: tuple[Fraction, ...] | None


class Generator:
    """The column generation for one collective on one net: the master LP, its columns and the oracle.

    Args:
        factor: the rate per unit of weight of a group's columns: N if each group carries rate/N, else 1.
        rows: for each link the number of its orbit, whose links share one row (default: one row per link).
        shares: for each group the number of equivalent groups that it represents (default 1).
    """

    def __init__(
        self, oracle: Oracle, factor: int, rows: Sequence[int] | None = None, shares: Sequence[int] | None = None
    ) -> None:
        self.oracle, self.factor = oracle, factor
        self.net = oracle.net
        self.link_caps, self.scale = self.net.integer_caps()
        self.rows = list(range(self.net.nlinks)) if rows is None else list(rows)
        self.caps = [0] * (max(self.rows) + 1)
        for link, row in enumerate(self.rows):
            self.caps[row] += self.link_caps[link]
        self.ngroups = oracle.ngroups
        self.shares = [1] * self.ngroups if shares is None else list(shares)
        self.columns: list[Column] = []
        # The solution of the last LP. Columns may have been added since, after those that its weights are for.
        self.last: FloatSolution | None = None
        self._known: set[Column] = set()
        self._guess = _rate_guess(self.caps)
        # True if all allowed columns are present, so that there is nothing to price.
        self.complete = False
        # The budget of the current search. The function that starts a search sets it.
        self.effort = Effort(math.inf)
        self.master = self._new_master()

    def _new_master(self) -> Master:
        return Master(self.caps, self.shares, self.factor, self._guess)

    def add(self, columns: Iterable[Column]) -> int:
        """Adds the columns that are not present yet, and returns their number."""
        fresh = [c for c in dict.fromkeys(columns) if c not in self._known]
        for column in fresh:
            self._known.add(column)
            self.columns.append(column)
            self.master.add(column.group, self.row_loads(column))
        return len(fresh)

    def row_loads(self, column: Column) -> dict[int, int]:
        """Returns row -> the number of times that hops of the column cross its links."""
        count: dict[int, int] = {}
        for link, times in column.loads().items():
            row = self.rows[link]
            count[row] = count.get(row, 0) + times
        return count

    def link_prices(self, prices: Sequence[Price]) -> list[Price]:
        """Returns the price of each link from the prices of rows."""
        return [prices[row] for row in self.rows]

    def seed(self, depth: int | None) -> None:
        """Adds first columns: cheap trees if every link costs the inverse of its capacity."""
        self.complete = False
        # This never raises OutOfEffortError, because a search that ends at its limit needs columns as well.
        self.effort.left -= self.oracle.effort(depth)
        self.add(p.column for p in self.oracle.cheapest([1.0 / c for c in self.link_caps], depth))

    def solve(self) -> FloatSolution:
        """Returns the float optimum over the present columns. Raises the errors of `Master.solve`."""
        self.last = self.master.solve(self.effort)
        return self.last

    def price(self, now: FloatSolution, depth: int | None) -> list[PricedColumn]:
        """Returns cheap columns under the prices of a solution."""
        self.effort.spend(self.oracle.effort(depth))
        return self.oracle.cheapest(self.link_prices(now.prices), depth)

    def fill(self, columns: Sequence[Column]) -> None:
        """Starts again from these columns and prices no others."""
        self.restrict(columns)
        self.complete = True

    def improve(self, depth: int | None, target: Fraction | None) -> FloatSolution | None:
        """Adds columns until none improves (in floats) or the rate reaches `target` GB/s, and returns the solution.

        Returns None if some group has no column.
        """
        goal = None if target is None else float(target * self.scale) * (1 - 1e-11)
        if {c.group for c in self.columns} != set(range(self.ngroups)):
            return None
        if self.complete:
            return self.solve()
        for _ in range(_MAX_ROUNDS):
            now = self.solve()
            if goal is not None and now.rate >= goal:
                return now
            found = self.price(now, depth)
            if not self.add(p.column for p in found if p.cost < now.groups[p.column.group] * (1 - _LEAST_GAIN)):
                return now
        return now

    def subset(self, columns: Sequence[Column]) -> Generator:
        """Returns another generator of the same problem that has only these columns and prices no others."""
        other = Generator(self.oracle, self.factor, self.rows, self.shares)
        other.effort = self.effort
        other.fill(columns)
        return other

    def restrict(self, columns: Sequence[Column]) -> None:
        """Starts again from only these columns."""
        self.columns, self._known, self.last = [], set(), None
        self.master = self._new_master()
        self.add(columns)

    def exact(self) -> Packing | None:
        """Returns the exact optimum over the present columns; None if the exact pivots fail.

        It does not prove that no other column helps.
        """
        self.solve()
        found = self.master.exact(self.effort)
        return None if found is None else self._packing(found, None)

    def prove(self, target: Fraction | None = None) -> Packing | None:
        """Returns the exact optimum over all trees, with prices that prove it; None if the search fails.

        Exact pricing adds columns that floats overlooked.

        Args:
            target: a rate in GB/s that is already proven. A packing that reaches it gets no prices.
        """
        for attempt in range(_MAX_ROUNDS):
            self.improve(None, target if attempt == 0 else None)
            found = self.master.exact(self.effort)
            if found is None:
                return None
            if target is not None and found.rate == target * self.scale:
                return self._packing(found, None)
            prices = self.link_prices(found.prices)
            self.effort.spend(self.oracle.effort(None))
            cheap, scale = self.oracle.cheapest_exact(prices)
            unit = self.unit_cost(cheap)
            worth = sum((c * y for c, y in zip(self.caps, found.prices, strict=True)), Fraction(0))
            if worth * scale == found.rate * unit:
                return self._packing(found, prices)
            if not self.add(p.column for p in cheap):
                return None
        return None

    def unit_cost(self, cheap: Sequence[PricedColumn]) -> Fraction:
        """Returns the cost of one unit of rate with the cheapest column of each group."""
        low: dict[int, int] = {}
        for priced in cheap:
            group, cost = priced.column.group, int(priced.cost)
            low[group] = min(cost, low.get(group, cost))
        return Fraction(sum(cost * self.shares[group] for group, cost in low.items()), self.factor)

    def _packing(self, found: ExactSolution, prices: Sequence[Fraction] | None) -> Packing:
        rate = found.rate / self.scale
        weights = tuple((self.columns[j], w / self.scale) for j, w in sorted(found.weights.items()))
        return Packing(
            rate,
            trim_weights(weights, [rate * s / self.factor for s in self.shares]),
            None if prices is None else tuple(prices),
        )


def trim_weights(
    weights: Sequence[tuple[Column, Fraction]], shares: Sequence[Fraction]
) -> tuple[tuple[Column, Fraction], ...]:
    """Returns the weights reduced so that every group carries exactly its share, since an LP may carry more.

    The lightest columns are reduced first, and columns without weight are left out.
    """
    excess = [-share for share in shares]
    for column, weight in weights:
        excess[column.group] += weight
    kept = dict(weights)
    for column, weight in sorted(weights, key=lambda pair: pair[1]):
        take = min(weight, excess[column.group])
        excess[column.group] -= take
        kept[column] -= take
    return tuple((column, weight) for column, weight in kept.items() if weight)


def _rate_guess(caps: Sequence[int]) -> float:
    """Returns the median capacity, an estimate of the rate's magnitude."""
    return float(sorted(caps)[len(caps) // 2]) if caps else 1.0
