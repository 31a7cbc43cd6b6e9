"""Budgets of searches. Work is counted, not timed, so a search of the same graph ends at the same step everywhere.

Only a time limit that the user sets reads a clock.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from collc.errors import PackingError

# Effort of one plan, in units of about a microsecond: GOAL_EFFORT for each optional goal (less depth, fewer trees), and
# PROOF_EFFORT for the optimum and its proof. The estimates are high: all searches of a plan and its check take about
# BUDGET_S on a 3 GHz core.
GOAL_EFFORT, PROOF_EFFORT = 2.5e6, 9e6
BUDGET_S = 10


class OutOfEffortError(PackingError):
    """Raised when a search has used up its effort. The caller continues with the best result so far."""


class Effort:
    """The work that a search may still do, in units of about a microsecond of one core.

    The unit is an estimate, correct within a factor of three.

    Args:
        limit: the number of units.
        deadline: the time of `time.monotonic` that ends the work; None for no deadline.
    """

    def __init__(self, limit: float, deadline: float | None = None) -> None:
        self.left, self._deadline = limit, deadline

    def spend(self, amount: float) -> None:
        """Subtracts `amount` units.

        Raises:
            OutOfEffortError: less than `amount` was left, or the deadline has passed.
        """
        self.left -= amount
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.left = -1.0
        if self.left < 0:
            raise OutOfEffortError("the search ended at its limit", hint="--solver mwu gives a plan with a proven gap")


@dataclass(frozen=True)
class Limits:
    """The limits of the searches for one plan.

    Attributes:
        work: a multiple of the default effort.
        deadline: the end of all searches, in seconds of `time.monotonic`. With a deadline the search for the optimum
            has no other limit. None for no deadline.
    """

    work: float = 1.0
    deadline: float | None = None

    def goal_effort(self) -> Effort:
        """Returns the effort for an optional goal: less depth, fewer trees or a first plan."""
        return Effort(GOAL_EFFORT * self.work, self.deadline)

    def proof_effort(self) -> Effort:
        """Returns the effort for the optimum and its proof."""
        return Effort(PROOF_EFFORT * self.work if self.deadline is None else math.inf, self.deadline)

    def are_over(self) -> bool:
        """Returns True if there is a deadline and it has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline
