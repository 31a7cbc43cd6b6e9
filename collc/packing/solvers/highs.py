"""The interface to HiGHS, with limits on every call that do not depend on a clock. No other module imports highspy.

The simplex method may cycle on degenerate packings: on some graphs of 9 GPUs it made 400,000 iterations at objective 0
without an end. `Program.solve` therefore limits iterations, and tries again with a looser tolerance and with the other
method (primal, then dual). Integer programs are limited by nodes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import highspy
import numpy as np

INF = highspy.kHighsInf
# The limit on iterations of one attempt is _BASE_ITERATIONS plus _ITERATIONS_PER_ROW for each row. Optima usually take
# about one iteration per row, rarely ten.
_BASE_ITERATIONS, _ITERATIONS_PER_ROW = 2000, 20
# Integer programs end at their limit on nodes. It does not apply to the root relaxation, so they also have a time
# limit.
_MIP_SECONDS = 120.0
# HiGHS's numbers of the simplex strategies.
_PRIMAL, _DUAL = 4, 1


@dataclass(frozen=True)
class _Way:
    """An attempt with the simplex method: its strategy, its tolerance, and whether it drops the last basis first."""

    strategy: int
    tolerance: float
    fresh: bool


# New columns keep the old basis primal feasible, so primal comes first.
_WAYS = (
    _Way(_PRIMAL, 1e-10, fresh=False),
    _Way(_PRIMAL, 1e-7, fresh=False),
    _Way(_DUAL, 1e-7, fresh=True),
    _Way(_PRIMAL, 1e-10, fresh=True),
)


def solver_version() -> str:
    """Returns the version of HiGHS. Another version may return another one of several optima."""
    return version("highspy")


class Outcome(enum.Enum):
    """The result of a call. LIMIT: a limit was reached or numerical errors occurred, so nothing is known."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    LIMIT = "limit"


class _SilentHighs(highspy.Highs):
    """HiGHS without output, because standard output may be JSON.

    HiGHS 1.16 prints its version when callbacks are enabled. Its constructor enables them before an option can be set.
    """

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


class Program:
    """A linear program, or with `nodes` an integer program. Rows and columns are added one by one.

    Args:
        maximize: maximize the objective instead of minimizing it.
        nodes: the most nodes of branch and bound of an integer program.
    """

    def __init__(self, *, maximize: bool = False, nodes: int | None = None) -> None:
        self._nodes = nodes
        self._solver: Any = _SilentHighs()  # type: ignore[no-untyped-call]
        self._set(output_flag=False, threads=1)
        if nodes is None:
            self._set(presolve="off")
        else:
            self._set(mip_max_nodes=nodes, time_limit=_MIP_SECONDS)
        if maximize:
            self._solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self.nrows = self.ncolumns = 0
        # The number of simplex iterations of all calls so far.
        self.iterations = 0

    def row(self, low: float, high: float, terms: Mapping[int, float] | None = None) -> int:
        """Adds a row with its coefficients by column, and returns its number."""
        places, values = _sparse(terms or {})
        self._solver.addRow(low, high, len(places), places, values)
        self.nrows += 1
        return self.nrows - 1

    def column(
        self, cost: float, low: float, high: float, terms: Mapping[int, float] | None = None, *, integer: bool = False
    ) -> int:
        """Adds a variable with its coefficients by row, and returns its number."""
        places, values = _sparse(terms or {})
        self._solver.addCol(cost, low, high, len(places), places, values)
        if integer:
            assert self._nodes is not None, "an integer program needs a limit on nodes"
            self._solver.changeColIntegrality(self.ncolumns, highspy.HighsVarType.kInteger)
        self.ncolumns += 1
        return self.ncolumns - 1

    def bounds(self, column: int, low: float, high: float) -> None:
        """Changes the bounds of a variable."""
        self._solver.changeColBounds(column, low, high)

    def costs(self, columns: Sequence[int], values: Sequence[float]) -> None:
        """Changes objective coefficients."""
        places = np.array(columns, dtype=np.int32)
        self._solver.changeColsCost(len(places), places, np.array(values, dtype=np.float64))

    def solve(self) -> Outcome:
        """Runs HiGHS within its limits and returns the result."""
        for way in _WAYS if self._nodes is None else (None,):
            if way is not None:
                self._prepare(way)
            failed = self._solver.run() == highspy.HighsStatus.kError
            self.iterations += max(0, int(self._solver.getInfo().simplex_iteration_count))
            status = self._solver.getModelStatus()
            if not failed and status == highspy.HighsModelStatus.kOptimal:
                return Outcome.OPTIMAL
            if not failed and status == highspy.HighsModelStatus.kInfeasible and way is None:
                return Outcome.INFEASIBLE
        return Outcome.LIMIT

    def _prepare(self, way: _Way) -> None:
        if way.fresh:
            self._solver.clearSolver()
        self._set(
            simplex_strategy=way.strategy,
            primal_feasibility_tolerance=way.tolerance,
            dual_feasibility_tolerance=way.tolerance,
            simplex_iteration_limit=_BASE_ITERATIONS + _ITERATIONS_PER_ROW * self.nrows,
        )

    def _set(self, **options: bool | int | float | str) -> None:
        for name, value in options.items():
            if self._solver.setOptionValue(name, value) != highspy.HighsStatus.kOk:
                raise AssertionError(f"HiGHS knows no option {name} = {value}")

    def values(self) -> list[float]:
        """Returns the values of the variables in the last solution."""
        return list(self._solver.getSolution().col_value)

    def duals(self) -> list[float]:
        """Returns the dual value of every row in the last solution."""
        return list(self._solver.getSolution().row_dual)

    def basis(self) -> tuple[list[int], list[int]]:
        """Returns (basic columns, rows whose slack is not basic) of the last basis."""
        basis, basic = self._solver.getBasis(), highspy.HighsBasisStatus.kBasic
        return (
            [j for j, status in enumerate(basis.col_status) if status == basic],
            [i for i, status in enumerate(basis.row_status) if status != basic],
        )


def _sparse(terms: Mapping[int, float]) -> tuple[Any, Any]:
    return np.array(list(terms), dtype=np.int32), np.array(list(terms.values()), dtype=np.float64)
