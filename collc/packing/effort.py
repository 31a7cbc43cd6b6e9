"""How much work a search may still do, counted and not timed: the same graph ends at the same step on every machine."""

from __future__ import annotations

from collc.errors import PackingError

# Effort on graphs of up to _SMALL ranks, in about microseconds: for each wish, and for the optimum with its proof.
_WISH, _PROOF, _SMALL = 2.5e6, 9e6, 16
# However many ranks there are, so much at most: what an hour finds is no plan for an operator.
_MOST_WISH, _MOST_PROOF = 100e6, 300e6


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
    size = max(1.0, nranks / _SMALL) ** 2
    return min(_WISH * size, _MOST_WISH), min(_PROOF * size, _MOST_PROOF)
