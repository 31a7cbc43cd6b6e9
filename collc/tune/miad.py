"""Blink's search for a chunk size: multiplicative increase, additive decrease (Wang et al., MLSys 2020, section 4.2.1).

The chunk doubles as long as that makes calls faster. From the first size that does not, it shrinks step by step as long
as that makes calls faster. So a few measurements find the maximum of a curve that rises, stays and falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """One comparison: the best chunk so far and its time, and another chunk and its time, in any unit of time."""

    best: int
    best_time: float
    other: int
    other_time: float
    phase: str  # "increase" or "decrease"


@dataclass(frozen=True)
class Walk:
    """The result of a search, and its steps."""

    chunk: int
    trials: tuple[Trial, ...]


def miad(
    chunks: Sequence[int],
    compare: Callable[[int, int], tuple[float, float]],
    *,
    start: int | None = None,
    gain: float = 0.0,
) -> Walk:
    """Returns the chunk size that MIAD finds, and its steps.

    Args:
        chunks: the available sizes, ascending. An increase goes to the first size that is at least twice as large, else
            to the largest one. A decrease goes to the next smaller one.
        compare: (a, b) -> the times of both, measured side by side.
        start: the first size (default: the smallest).
        gain: a size counts as faster if it saves more than this fraction.

    Raises:
        ValueError: `chunks` is empty or `start` is not among it.
    """
    if not chunks:
        raise ValueError("no chunk sizes to search")
    at = 0 if start is None else list(chunks).index(start)
    trials: list[Trial] = []

    def faster(other: int, phase: str) -> bool:
        best_time, other_time = compare(chunks[at], chunks[other])
        trials.append(Trial(chunks[at], best_time, chunks[other], other_time, phase))
        return other_time < best_time * (1 - gain)

    failed: int | None = None
    below = at
    while failed is None and at + 1 < len(chunks):
        twice = next((i for i in range(at + 1, len(chunks)) if chunks[i] >= 2 * chunks[at]), len(chunks) - 1)
        if faster(twice, "increase"):
            below, at = at, twice
        else:
            failed = twice
    # Decrease from the size that was too large, or from the last one, as long as it gets faster.
    top = len(chunks) - 1 if failed is None else failed
    for smaller in range(top - 1, below, -1):
        if smaller == at:
            continue
        if faster(smaller, "decrease"):
            at = smaller
        elif smaller < at:
            break
    # If the start was large enough, try the sizes below it.
    while at == below and below > 0 and faster(below - 1, "decrease"):
        below = at = below - 1
    return Walk(chunks[at], tuple(trials))
