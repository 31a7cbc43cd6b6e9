"""How much work a search may still do, counted and not timed: the same graph ends at the same step on every machine.

Only a time limit that the user gives reads a clock.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from collc.errors import PackingError

# Effort of a plan in about microseconds: for each wish, such as less depth or fewer trees, and for the optimum with its
# proof. Estimates are on the high side: all searches of a plan and its check take about BUDGET_S on a 3 GHz core.
WISH, PROOF = 2.5e6, 9e6
BUDGET_S = 10


class OutOfEffortError(PackingError):
    """A search has used up its effort; the caller continues with the best result so far."""


class Effort:
    """Work left, in units that take about a microsecond of one core each (estimates, within a factor of three)."""

    def __init__(self, limit: float, deadline: float | None = None) -> None:
        self.left, self._deadline = limit, deadline

    def spend(self, amount: float) -> None:
        """Takes `amount` off; raises OutOfEffortError when nothing is left."""
        self.left -= amount
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.left = -1.0
        if self.left < 0:
            raise OutOfEffortError("the search ended at its limit", hint="--solver mwu gives a plan with a proven gap")


@dataclass(frozen=True)
class Limits:
    """How far the searches of one plan go.

    Args:
        work: a multiple of the default effort.
        deadline: when the search for the optimum ends whatever its work, in seconds of `time.monotonic`; None: never.
    """

    work: float = 1.0
    deadline: float | None = None

    def wish(self) -> Effort:
        """The effort for less depth, fewer trees or a first plan."""
        return Effort(WISH * self.work, self.deadline)

    def proof(self) -> Effort:
        """The effort for the optimum and its proof."""
        return Effort(PROOF * self.work if self.deadline is None else math.inf, self.deadline)

    def are_over(self) -> bool:
        """Returns True if there is a deadline and it has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline
