"""How much work a search may still do, counted and not timed: the same graph ends at the same step on every machine."""

from __future__ import annotations

from collc.errors import PackingError

# Effort on graphs of up to _SMALL ranks, in about microseconds: for each wish, and for the optimum with its proof.
_WISH, _PROOF, _SMALL = 2.5e6, 9e6, 16
# With more ranks than this it grows no further.
_LARGE = 1024


class OutOfEffortError(PackingError):
    """A search has used up its effort; the caller continues with the best result so far."""


class Effort:
    """Work left, in units that take about a microsecond of one core each (estimates, within a factor of three)."""

    def __init__(self, limit: float) -> None:
        self.left = limit

    def spend(self, amount: float) -> None:
        """Takes `amount` off; raises OutOfEffortError when nothing is left."""
        self.left -= amount
        if self.left < 0:
            raise OutOfEffortError("the search ended at its limit", hint="--solver mwu gives a plan with a proven gap")


def efforts(nranks: int) -> tuple[float, float]:
    """(effort for each thing that is only a wish, such as less depth or fewer trees; effort for the optimum)."""
    size = max(1.0, min(nranks, _LARGE) / _SMALL) ** 2
    return _WISH * size, _PROOF * size
