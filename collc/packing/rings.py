"""The rate of NCCL-style rings on the same graph, for comparison (Blink, MLSys 2020, figure 14).

A ring visits every GPU once; each of its links carries the ring's rate. NCCL uses whole links, so the best set of
rings is an integer program over all rings. Where no ring exists NCCL falls back to PCIe, taken as half an NVLink as in
Blink.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.packing.effort import Effort, OutOfEffortError
from collc.packing.highs import INF, Outcome, Program
from collc.packing.network import Distances, Net
from collc.topology.model import PlanGraph

MAX_GPUS = 9
# Work of one search in rings looked at, about a microsecond each. On the machines that collc ships it ends after a
# hundredth of that.
_SEARCH = 5e5
# An LP value that is below a whole number by no more stands for that number.
_ROUNDING = 1e-6
# Prices of links are multiples of 1/_PRICE_UNITS of the largest.
_PRICE_UNITS = 1 << 20

Load = tuple[tuple[int, int], ...]


def best_rings(graph: PlanGraph, unit: Fraction) -> int:
    """The most rings, each in one direction and one link wide, that fit on the links together.

    Raises UsageError above MAX_GPUS, where there are too many rings to list.
    """
    n = graph.nranks
    if n > MAX_GPUS:
        raise UsageError(f"rings of {n} GPUs are too many to list", hint=f"choose at most {MAX_GPUS} with --gpus")
    loads = _ring_loads(Net.of(graph))
    return sum(most_rings(loads, [int(link.gbps // unit) for link in graph.links])) if loads else 0


def most_rings(loads: Sequence[Load], room: Sequence[int]) -> list[int]:
    """Returns how often to take each load so that the most rings fit, or as many as the search finds in its budget.

    An LP bounds the number of rings. The first set in the order of `loads` that has the most rings is taken, because
    a solver's version decides which of several best sets it returns. If the search for that set ends at its limit, the
    whole part of the LP's solution stays and the search is about the rest.

    Args:
        loads: a ring each, as (link, how many of its hops run over it).
        room: how many hops fit on each link.
    """
    if not loads:
        return []
    prices, whole = _relaxed(loads, room)
    bound = _bound(loads, room, prices)
    greedy = _first_fit(loads, room)
    with suppress(OutOfEffortError):
        effort = Effort(_SEARCH)
        sets = (_first_set(loads, room, count, prices, effort) for count in range(bound, sum(greedy), -1))
        return next((found for found in sets if found is not None), greedy)
    left = list(room)
    for load, count in zip(loads, whole, strict=True):
        _take(left, load, count)
    rest = _first_fit(loads, left)
    budget = _SEARCH
    for count in range(bound - sum(whole), sum(rest), -1):
        # Each number of rings gets half of the budget that is left: only the search for a smaller number may end.
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
    """Returns the dual and the primal solution of the LP over fractions of rings: link prices, and counts of rings.

    The worth of all room over the cost of the cheapest ring bounds the number of rings, at any prices that give each
    ring a cost. If the solver finds none, every hop costs the same. The counts are rounded down and fit.
    """
    program = Program(maximise=True)
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
    """Takes each load in turn as often as it fits."""
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

    # Depth first: `order` holds the places of the rings taken so far, `place` is the next one to try beside them.
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
    """The distinct loads (link, times) of all directed rings through all ranks, hops by their shortest paths."""
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
    """The rate in GB/s of a collective on that many rings; without any, half a link over PCIe.

    A broadcast passes once along each ring; all_gather moves (N-1)/N of the buffer over every link, all_reduce twice as
    much.
    """
    width = unit * rings if rings else unit / 2
    rounds = collective.traits.bus_rounds
    return width * nranks / (rounds * (nranks - 1)) if rounds else width
