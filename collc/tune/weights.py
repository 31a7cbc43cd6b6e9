"""How much of a call each class of links should carry, measured: FlexLink's first stage (section 3.2.1, algorithm 1).

Again and again the slowest class gives away some of its share. How much is halved each time that another class has
become the slowest; the first class (NVLink) always stays, and another one whose share comes to nothing is left out.
Better than in FlexLink, a step is not of a fixed size and not from one class to one other: all shares go towards those
with which all classes end together if each keeps its rate. So a few measurements are enough, and two classes that are
equally slow do not wait for each other. A bottleneck that has moved in a call that became faster halves nothing. Of all
weights on the way those count whose slowest class took least, and `collc.tune.search` compares them side by side with
what they would replace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# By class, as `collc.topology.model.JOINT` orders them.
Weights = tuple[int, ...]
# Seconds until each class had done its part; 0: it carried nothing.
Times = Sequence[float]

WHOLE = 250  # what weights add up to, about: one is a byte


@dataclass(frozen=True)
class Steps:
    """When shares are good, and how far a search goes.

    Args:
        even: classes end together where the fastest took at least this share of the slowest one's time.
        steady: so many measurements in a row have to say so.
        least: a class that would carry less than this share of a call carries nothing.
        most: measurements at most.
    """

    even: float = 0.95
    steady: int = 2
    least: float = 1 / 64
    most: int = 24


def balanced(start: Weights, timed: Callable[[Weights], Times], steps: Steps = Steps()) -> Weights:
    """The weights under which all classes that pay end together.

    Args:
        start: to begin with; classes that weigh nothing stay out.
        timed: measures a call with weights.
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
        # What a class takes for however little it carries does not end with smaller steps.
        tiny = slow != first and shares[slow] < 2 * steps.least
        shares = _towards_even(shares, times, gain, (slow,) if tiny else ())
        small = [part for part, share in enumerate(shares) if 0 < share < steps.least and part != first]
        shares = _scaled([0.0 if part in small else share for part, share in enumerate(shares)])
    return best


def alone(weights: Weights, times: Times) -> Weights:
    """The weights of the class alone that is the fastest by what the classes carried in which time."""
    shares = _scaled(weights)
    rates = [share / spent if share and spent else 0.0 for share, spent in zip(shares, times, strict=True)]
    chosen = rates.index(max(rates))
    return tuple(WHOLE if part == chosen else 0 for part in range(len(weights)))


def to_weights(shares: Sequence[float]) -> Weights:
    """Bytes in proportion to shares, those of classes that carry something at least 1."""
    return tuple(max(1, round(share * WHOLE)) if share else 0 for share in shares)


def _scaled(shares: Sequence[float]) -> list[float]:
    return [share / sum(shares) for share in shares]


def _towards_even(shares: Sequence[float], times: Times, gain: float, without: Sequence[int]) -> list[float]:
    """Shares in proportion to the rates x / t of the classes but those left out, as far as `gain` goes."""
    kept = [0.0 if part in without else share for part, share in enumerate(shares)]
    rates = [share / max(spent, 1e-9) if share else 0.0 for share, spent in zip(kept, times, strict=True)]
    wanted = [rate / sum(rates) for rate in rates]
    return [share + gain * (want - share) for share, want in zip(_scaled(kept), wanted, strict=True)]
