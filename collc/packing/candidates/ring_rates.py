"""Computes the rate of NCCL-style rings on a graph, for comparison (Blink, MLSys 2020, figure 14).

A ring visits every GPU once, and each of its links carries the ring's rate. NCCL uses whole links, so the best set of
rings is the solution of an integer program over all rings. If no ring exists, NCCL falls back to PCIe, which counts as
half an NVLink, as in Blink.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.packing.solvers.effort import Effort, OutOfEffortError
from collc.packing.solvers.highs import INF, Outcome, Program
from collc.packing.solvers.network import Distances, Net
from collc.topology.model import PlanGraph

MAX_GPUS = 9
# The budget of one search, in rings looked at. Each takes about a microsecond. On the machines that come with collc the
# search ends after a hundredth of the budget.
_SEARCH_EFFORT = 5e5
# The value of an LP is rounded up to a whole number if the difference is at most this.
_ROUNDING = 1e-6
# Prices of links are multiples of 1/_PRICE_UNITS of the largest.
_PRICE_UNITS = 1 << 20

Load = tuple[tuple[int, int], ...]


def best_rings(graph: PlanGraph, unit: Fraction) -> int:
    """Returns the largest number of directed rings that fit on the links together.

    Args:
        unit: the width of each ring in GB/s.

    Raises:
        UsageError: there are more than MAX_GPUS ranks, and so too many rings to list.
    """
    n = graph.nranks
    if n > MAX_GPUS:
        raise UsageError(f"rings of {n} GPUs are too many to list", hint=f"choose at most {MAX_GPUS} with --gpus")
    loads = _ring_loads(Net.of(graph))
    return sum(most_rings(loads, [int(link.gbps // unit) for link in graph.links])) if loads else 0


def most_rings(loads: Sequence[Load], room: Sequence[int]) -> list[int]:
    """Returns how often to take each load so that the most rings fit, or as many as the search finds in its budget.

    An LP bounds the number of rings. The result is the first set, in the order of `loads`, that has the most rings,
    because different versions of a solver may return different best sets. If the search for it ends at its limit, the
    rounded solution of the LP is kept and only the rest is searched.

    Args:
        loads: one ring each, as (link, number of its hops over this link).
        room: the number of hops that fit on each link.
    """
    if not loads:
        return []
    prices, whole = _relaxed(loads, room)
    bound = _bound(loads, room, prices)
    greedy = _first_fit(loads, room)
    with suppress(OutOfEffortError):
        effort = Effort(_SEARCH_EFFORT)
        sets = (_first_set(loads, room, count, prices, effort) for count in range(bound, sum(greedy), -1))
        return next((found for found in sets if found is not None), greedy)
    left = list(room)
    for load, count in zip(loads, whole, strict=True):
        _take(left, load, count)
    rest = _first_fit(loads, left)
    budget = _SEARCH_EFFORT
    for count in range(bound - sum(whole), sum(rest), -1):
        # Each number of rings gets half of the remaining budget, so that smaller numbers get a search as well.
        budget /= 2
        with suppress(OutOfEffortError):
            found = _first_set(loads, left, count, prices, Effort(budget))
            if found is not None:
                rest = found
                break
    return max(greedy, [a + b for a, b in zip(whole, rest, strict=True)], key=sum)


def rings_bound(loads: Sequence[Load], room: Sequence[int]) -> int:
    """Returns an upper bound on `most_rings`, from an LP over fractions of rings."""
    return _bound(loads, room, _relaxed(loads, room)[0]) if loads else 0


def _bound(loads: Sequence[Load], room: Sequence[int], prices: Sequence[int]) -> int:
    return _worth(prices, enumerate(room)) // min(_worth(prices, load) for load in loads)


def _relaxed(loads: Sequence[Load], room: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns the dual and the primal solution of the LP over fractions of rings: link prices, and numbers of rings.

    The price of all room divided by the cost of the cheapest ring bounds the number of rings, for any prices that give
    each ring a positive cost. If the solver finds none, every hop costs the same. The numbers are rounded down and fit.
    """
    program = Program(maximize=True)
    for hops in room:
        program.row(-INF, float(hops))
    for load in loads:
        program.column(1.0, 0.0, INF, {link: float(times) for link, times in load})
    if program.solve() is Outcome.OPTIMAL:
        duals = program.duals()
        prices = [round(max(0.0, dual) / max(duals) * _PRICE_UNITS) for dual in duals]
        whole = [int(value + _ROUNDING) for value in program.values()]
        left = list(room)
        for load, count in zip(loads, whole, strict=True):
            _take(left, load, count)
        if min(left) >= 0 and all(_worth(prices, load) for load in loads):
            return prices, whole
    return [1] * len(room), [0] * len(loads)


def _take(left: list[int], load: Load, count: int) -> None:
    for link, times in load:
        left[link] -= times * count


def _worth(prices: Sequence[int], hops: Iterable[tuple[int, int]]) -> int:
    return sum(prices[link] * times for link, times in hops)


def _first_fit(loads: Sequence[Load], room: Sequence[int]) -> list[int]:
    """Returns how often each load is taken if each is taken in turn as often as it fits."""
    left, taken = list(room), []
    for load in loads:
        taken.append(min(left[link] // times for link, times in load))
        _take(left, load, taken[-1])
    return taken


def _first_set(
    loads: Sequence[Load], room: Sequence[int], count: int, prices: Sequence[int], effort: Effort
) -> list[int] | None:
    """Returns the first set of `count` rings in the order of `loads`, or None if there is none.

    Raises:
        OutOfEffortError: the search ended at its limit.
    """
    left, taken = list(room), [0] * len(loads)
    costs = [_worth(prices, load) for load in loads]
    cheapest, worth = min(costs), _worth(prices, enumerate(room))

    # Depth first: `order` has the places of the rings taken so far, `place` is the place of the next ring to try.
    order: list[int] = []
    place = 0
    while len(order) < count:
        start = place
        while place < len(loads) and any(times > left[link] for link, times in loads[place]):
            place += 1
        effort.spend(1 + place - start)
        if place < len(loads) and (count - len(order)) * cheapest <= worth:
            order.append(place)
            step = 1
        elif order:
            place = order.pop()
            step = -1
        else:
            return None
        taken[place] += step
        worth -= step * costs[place]
        _take(left, loads[place], step)
        if step < 0:
            place += 1
    return taken


def _ring_loads(net: Net) -> list[Load]:
    """Returns the distinct loads (link, times) of all directed rings through all ranks, with shortest paths as hops."""
    ones = [1] * net.nlinks
    hops = Distances(net, ones, net.nlinks + 1)
    n = net.nranks
    near = [[v for v in range(n) if hops.cost[u][v] < hops.big] for u in range(n)]
    found: dict[Load, None] = {}
    stack: list[tuple[int, ...]] = [(0,)]
    while stack:
        way = stack.pop()
        if len(way) < n:
            stack += [(*way, v) for v in near[way[-1]] if v not in way]
        elif 0 in near[way[-1]]:
            count: dict[int, int] = {}
            for u, v in zip(way, (*way[1:], 0), strict=True):
                for link in hops.path(u, v):
                    count[link] = count.get(link, 0) + 1
            found[tuple(sorted(count.items()))] = None
    return list(found)


def ring_rate(collective: Collective, nranks: int, rings: int, unit: Fraction) -> Fraction:
    """Returns the rate of a collective in GB/s on a number of rings; with no ring, on half a link (PCIe).

    A broadcast passes once along each ring. all_gather moves (N-1)/N of the buffer over every link, and all_reduce
    moves twice as much.

    Args:
        unit: the width of each ring in GB/s.
    """
    width = unit * rings if rings else unit / 2
    rounds = collective.traits.bus_rounds
    return width * nranks / (rounds * (nranks - 1)) if rounds else width
