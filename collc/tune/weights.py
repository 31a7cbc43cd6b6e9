"""Measures which part of a call each path class should carry: FlexLink's first stage (section 3.2.1, algorithm 1).

In each step the slowest class gives away some of its share. The step is halved each time another class has become the
slowest. The first class (NVLink) always stays, and another class is left out if its share becomes too small. Unlike in
FlexLink, a step has no fixed size, and is not from one class to one other: all shares move towards the shares that let
all classes end together if each keeps its rate. So a few measurements are enough, and two equally slow classes do not
wait for each other. If the call became faster, a new slowest class does not halve the step. The result is the weights
whose slowest class took the least time. `collc.tune.search` compares them side by side with the previous weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# The weight of each class, in the order of `collc.topology.model.JOINT`.
Weights = tuple[int, ...]
# The seconds until each class had finished; 0 if it carried nothing.
Times = Sequence[float]

WHOLE = 250  # the approximate sum of the weights; each weight fits in a byte


@dataclass(frozen=True)
class Steps:
    """The limits of a search.

    Attributes:
        even: classes end together if the fastest takes at least this fraction of the slowest one's time.
        steady: the number of measurements in a row that must show this.
        least: a class that would carry less than this fraction of a call carries nothing.
        most: the most measurements.
    """

    even: float = 0.95
    steady: int = 2
    least: float = 1 / 64
    most: int = 24


def balanced(start: Weights, timed: Callable[[Weights], Times], steps: Steps = Steps()) -> Weights:
    """Returns weights that let all useful classes end together.

    Args:
        start: the first weights; classes with weight 0 stay out.
        timed: measures a call with given weights.
    """
    shares = _scaled(start)
    first = next(part for part, share in enumerate(shares) if share)
    best, least = start, float("inf")
    gain, slowest, steady = 1.0, -1, 0
    for _ in range(steps.most):
        weights = to_weights(shares)
        times = timed(weights)
        better = max(times) < least
        if better:
            best, least = weights, max(times)
        active = [part for part, share in enumerate(shares) if share]
        if active == [first]:
            break
        slow = max(active, key=lambda part: times[part])
        fast = min(active, key=lambda part: times[part])
        if times[fast] >= steps.even * times[slow]:
            steady += 1
            if steady == steps.steady:
                break
            continue
        steady = 0
        gain /= 2 if slowest not in (-1, slow) and not better else 1
        slowest = slow
        # A class with a large fixed time would stay the slowest with any small share, so it is left out.
        tiny = slow != first and shares[slow] < 2 * steps.least
        shares = _towards_even(shares, times, gain, (slow,) if tiny else ())
        small = [part for part, share in enumerate(shares) if 0 < share < steps.least and part != first]
        shares = _scaled([0.0 if part in small else share for part, share in enumerate(shares)])
    return best


def alone(weights: Weights, times: Times) -> Weights:
    """Returns weights of only the class with the highest rate, from the shares and times of all classes."""
    shares = _scaled(weights)
    rates = [share / spent if share and spent else 0.0 for share, spent in zip(shares, times, strict=True)]
    chosen = rates.index(max(rates))
    return tuple(WHOLE if part == chosen else 0 for part in range(len(weights)))


def to_weights(shares: Sequence[float]) -> Weights:
    """Returns weights in proportion to shares, at least 1 for every class with a share."""
    return tuple(max(1, round(share * WHOLE)) if share else 0 for share in shares)


def _scaled(shares: Sequence[float]) -> list[float]:
    return [share / sum(shares) for share in shares]


def _towards_even(shares: Sequence[float], times: Times, gain: float, without: Sequence[int]) -> list[float]:
    """Returns shares moved by the fraction `gain` towards the rates x / t of the classes, except `without`."""
    kept = [0.0 if part in without else share for part, share in enumerate(shares)]
    rates = [share / max(spent, 1e-9) if share else 0.0 for share, spent in zip(kept, times, strict=True)]
    wanted = [rate / sum(rates) for rate in rates]
    return [share + gain * (want - share) for share, want in zip(_scaled(kept), wanted, strict=True)]
