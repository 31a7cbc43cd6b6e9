"""The master LP of column generation: HiGHS finds a basis in floats, and `exact` solves that basis again in rationals.

    maximize   rate
    subject to sum over columns of load * weight <= capacity          one row per link (or orbit of links)
               share_g * rate - factor * sum of weights in g <= 0     one row per group of columns

A column is a tree, a pair of trees, or the paths from one source. Its loads are small integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import flint

from collc.errors import PackingError
from collc.packing.solvers.effort import Effort
from collc.packing.solvers.highs import INF, Outcome, Program

# The number of exact pivots after HiGHS's basis that count as a failure. Usually there is none, at most a handful.
_MAX_PIVOTS = 5000
# Effort in microseconds of a simplex iteration per row or column (_STEP_EFFORT), the number of iterations that the
# start of a call costs (_START_STEPS), and the effort of an exact pivot per entry of its basis (_PIVOT_EFFORT).
_STEP_EFFORT, _START_STEPS, _PIVOT_EFFORT = 0.06, 3, 1.0


@dataclass(frozen=True)
class FloatSolution:
    """The result of HiGHS.

    Attributes:
        weights: by column.
        prices: by capacity row.
        groups: by group of columns: a column that costs less than this improves the rate.
    """

    rate: float
    weights: list[float]
    prices: list[float]
    groups: list[float]


@dataclass(frozen=True)
class ExactSolution:
    """An optimal basic solution over the present columns: nonzero `weights` by column, `prices` by capacity row."""

    rate: Fraction
    weights: dict[int, Fraction]
    prices: list[Fraction]


class Master:
    """A growing set of columns over fixed rows.

    Args:
        caps: the capacity of each row, as integers in a unit of the caller's choice.
        shares: for each group, the part of the rate that it must carry, as an integer numerator.
        factor: the factor of the module's docstring.
        scale: an estimate of the rate, which only conditions the float LP.
    """

    def __init__(self, caps: Sequence[int], shares: Sequence[int], factor: int, scale: float) -> None:
        self.caps, self.shares, self.factor, self.scale = list(caps), list(shares), factor, scale
        self.columns: list[tuple[int, dict[int, int]]] = []
        self._program = Program(maximize=True)
        for _ in self.caps:
            self._program.row(-INF, 1.0)
        for _ in self.shares:
            self._program.row(-INF, 0.0)
        top = max(self.shares)
        self._program.column(1.0, 0.0, INF, {len(self.caps) + g: s / top for g, s in enumerate(self.shares)})
        self._group_unit = factor / top
        self._charged = 0

    @property
    def nrows(self) -> int:
        """The number of rows of the LP: one per orbit of links, and one per group."""
        return len(self.caps) + len(self.shares)

    def add(self, group: int, loads: Mapping[int, int]) -> int:
        """Adds a column and returns its number."""
        self.columns.append((group, dict(loads)))
        terms = {r: k * self.scale / self.caps[r] for r, k in loads.items()}
        self._program.column(0.0, 0.0, INF, {**terms, len(self.caps) + group: -self._group_unit})
        return len(self.columns) - 1

    def solve(self, effort: Effort) -> FloatSolution:
        """Returns the float optimum over the present columns.

        Raises:
            PackingError: HiGHS found none within its limits.
            OutOfEffortError: `effort` is used up.
        """
        outcome = self._program.solve()
        steps, self._charged = self._program.iterations - self._charged, self._program.iterations
        effort.spend((steps + _START_STEPS) * _STEP_EFFORT * (self.nrows + len(self.columns)))
        if outcome is not Outcome.OPTIMAL:
            raise PackingError("the LP solver found no optimum within its limits", hint="try --solver mwu")
        values, duals = self._program.values(), self._program.duals()
        prices = [max(y, 0.0) * self.scale / c for y, c in zip(duals, self.caps, strict=False)]
        groups = [z * self._group_unit for z in duals[len(self.caps) :]]
        return FloatSolution(values[0] * self.scale, [w * self.scale for w in values[1:]], prices, groups)

    def hold_rate(self, rate: float) -> None:
        """Fixes the rate (in capacity units). From now on `solve` maximizes the objective that `favor` sets."""
        self._program.bounds(0, rate / self.scale * (1 - 1e-7), rate / self.scale)
        self._program.costs([0], [0.0])

    def favor(self, column: int, value: float) -> None:
        """Sets the objective coefficient of a column."""
        self._program.costs([column + 1], [value])

    def favor_all(self, values: Sequence[float]) -> None:
        """Sets the objective coefficients of all columns."""
        self._program.costs(range(1, len(values) + 1), values)

    def free(self, column: int) -> None:
        """Undoes `fix`."""
        self._program.bounds(column + 1, 0.0, INF)

    def fix(self, column: int, weight: float) -> None:
        """Fixes the weight of a column (in capacity units)."""
        self._program.bounds(column + 1, weight / self.scale * (1 - 1e-8), weight / self.scale)

    def exact(self, effort: Effort) -> ExactSolution | None:
        """Returns the exact optimum over the present columns; None if the pivots do not reach it.

        The pivots start at HiGHS's last basis, and if that fails, again at the all-slack basis.

        Raises:
            OutOfEffortError: `effort` is used up.
        """
        columns, tight = self._program.basis()
        found = _ExactSimplex(self, columns, tight, effort).run()
        if found is None:
            # The all-slack basis is slow, but always feasible.
            found = _ExactSimplex(self, [], list(range(self.nrows)), effort).run()
        return found

    def entries(self, column: int) -> dict[int, int]:
        """Returns row -> coefficient of a structural column: column 0 is the rate, j + 1 the j-th added column."""
        first = len(self.caps)
        if column == 0:
            return {first + g: s for g, s in enumerate(self.shares)}
        group, loads = self.columns[column - 1]
        return {**loads, first + group: -self.factor}


class _ExactSimplex:
    """Primal simplex on the master's columns in rationals. flint solves each basis anew (Dixon lifting).

    A basis is a set of structural columns and a set of tight rows of equal size. Slacks of the other rows are basic.
    """

    def __init__(self, master: Master, columns: list[int], tight: list[int], effort: Effort) -> None:
        self.master, self.effort = master, effort
        # The all-slack basis has no structural column and no tight row.
        self.columns = columns
        self.tight = tight if columns else []
        self.entries = [master.entries(j) for j in range(len(master.columns) + 1)]
        self.rhs = master.caps + [0] * len(master.shares)

    def run(self) -> ExactSolution | None:
        for _ in range(_MAX_PIVOTS):
            self.effort.spend(_PIVOT_EFFORT * (len(self.columns) + 1) ** 2 + len(self.entries))
            state = self._values()
            if state is None:
                return None
            x, slack, y = state
            if any(v < 0 for v in x) or any(v < 0 for v in slack.values()):
                return None
            entering = self._entering(y)
            if entering is None:
                return self._solution(x, y)
            if not self._pivot(entering, x, slack):
                return None
        return None

    def _matrix(self) -> Any:
        place = {r: i for i, r in enumerate(self.tight)}
        size = len(self.columns)
        flat = [0] * (size * size)
        for k, j in enumerate(self.columns):
            for row, value in self.entries[j].items():
                if row in place:
                    flat[place[row] * size + k] = value
        return flint.fmpz_mat(size, size, flat)

    def _values(self) -> tuple[list[Fraction], dict[int, Fraction], dict[int, Fraction]] | None:
        if len(self.columns) != len(self.tight):
            return None
        size = len(self.columns)
        matrix = self._matrix()
        try:
            x = _solve(matrix, [self.rhs[r] for r in self.tight])
            y = _solve(matrix.transpose(), [1 if j == 0 else 0 for j in self.columns])
        except ZeroDivisionError:
            return None
        tight = set(self.tight)
        slack = {r: Fraction(b) for r, b in enumerate(self.rhs) if r not in tight}
        for k in range(size):
            if x[k]:
                for row, value in self.entries[self.columns[k]].items():
                    if row not in tight:
                        slack[row] -= value * x[k]
        return x, slack, dict(zip(self.tight, y, strict=True))

    def _entering(self, y: dict[int, Fraction]) -> tuple[str, int] | None:
        """Returns the first improving column, else the first tight row with a negative price (Bland's rule)."""
        present = set(self.columns)
        # Integers over one denominator are faster, and there may be thousands of columns.
        scale = math.lcm(*(v.denominator for v in y.values()))
        whole = [0] * self.master.nrows
        for row, value in y.items():
            whole[row] = int(value * scale)
        for j, entries in enumerate(self.entries):
            if j not in present and sum(whole[r] * k for r, k in entries.items()) < (scale if j == 0 else 0):
                return ("column", j)
        for row in sorted(y):
            if y[row] < 0:
                return ("row", row)
        return None

    def _pivot(self, entering: tuple[str, int], x: list[Fraction], slack: dict[int, Fraction]) -> bool:
        kind, index = entering
        column = self.entries[index] if kind == "column" else {index: 1}
        step = _solve(self._matrix(), [column.get(r, 0) for r in self.tight]) if self.columns else []
        change = {r: Fraction(column.get(r, 0)) for r in slack}
        for k, j in enumerate(self.columns):
            if step[k]:
                for row, value in self.entries[j].items():
                    if row in change:
                        change[row] -= value * step[k]
        # Bland's rule: among equal smallest ratios the smallest index, columns before rows.
        ratios = [(x[k] / step[k], 0, j) for k, j in enumerate(self.columns) if step[k] > 0]
        ratios += [(slack[r] / change[r], 1, r) for r in slack if change[r] > 0]
        if not ratios:
            return False
        _, is_row, leaving = min(ratios)
        if kind == "column":
            self.columns.append(index)
        else:
            self.tight.remove(index)
        if is_row:
            self.tight.append(leaving)
        else:
            self.columns.remove(leaving)
        self.columns.sort()
        self.tight.sort()
        return True

    def _solution(self, x: list[Fraction], y: dict[int, Fraction]) -> ExactSolution:
        weights = {j - 1: v for j, v in zip(self.columns, x, strict=True) if j > 0 and v}
        rate = next((v for j, v in zip(self.columns, x, strict=True) if j == 0), Fraction(0))
        return ExactSolution(rate, weights, [y.get(r, Fraction(0)) for r in range(len(self.master.caps))])


def _solve(matrix: Any, rhs: list[int]) -> list[Fraction]:
    if not rhs:
        return []
    answer = matrix.solve(flint.fmpz_mat(len(rhs), 1, rhs))
    return [Fraction(int(answer[i, 0].p), int(answer[i, 0].q)) for i in range(len(rhs))]
