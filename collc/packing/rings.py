"""The rate of NCCL-style rings on the same graph, for comparison (Blink, MLSys 2020, figure 14).

A ring visits every GPU once; each of its links carries the ring's rate. NCCL uses whole links, so the best set of
rings is an integer program over all rings. Where no ring exists NCCL falls back to PCIe, taken as half an NVLink as in
Blink.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.packing.highs import INF, Program
from collc.packing.network import Distances, Net
from collc.topology.model import PlanGraph

MAX_GPUS = 9
_NODES = 20000
_SEARCH = 200_000

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
    """How often to take each load so that the most rings fit: an integer program.

    Args:
        loads: a ring each, as (link, how many of its hops run over it).
        room: how many hops fit on each link.
    """
    # No set has more rings than hops fit on all links together. Meshes often have that many, and a solver takes minutes
    # to find them among the 40,000 rings of 9 ranks.
    most = sum(room) // min((sum(times for _, times in load) for load in loads), default=1)
    found = _first_set(loads, room, most)
    if found is not None:
        return found
    program = Program(maximise=True, nodes=_NODES)
    for hops in room:
        program.row(-INF, float(hops))
    for load in loads:
        program.column(1.0, 0.0, INF, {link: float(times) for link, times in load}, integer=True)
    program.solve()
    chosen = [round(value) for value in program.values()]
    used = [0] * len(room)
    for load, count in zip(loads, chosen, strict=True):
        for link, times in load:
            used[link] += times * count
    if min(chosen, default=0) < 0 or any(u > hops for u, hops in zip(used, room, strict=True)):
        return [0] * len(loads)  # a program that ended at its limit may have found nothing
    return _first_set(loads, room, sum(chosen)) or chosen


def _first_set(loads: Sequence[Load], room: Sequence[int], count: int) -> list[int] | None:
    """The first set of `count` rings in the order of `loads`; None if the search ends at its limit.

    There are many best sets, and which one a solver returns depends on its version. Plans should not.
    """
    left, taken = list(room), [0] * len(loads)
    hops = min((sum(times for _, times in load) for load in loads), default=1)

    def take(load: Load, sign: int) -> None:
        for link, times in load:
            left[link] -= sign * times

    # Depth first: `order` holds the places of the rings taken so far, `place` is the next one to try beside them.
    order: list[int] = []
    place = 0
    for _ in range(_SEARCH):
        if len(order) == count:
            return taken
        missing = count - len(order)
        while place < len(loads) and any(times > left[link] for link, times in loads[place]):
            place += 1
        if place < len(loads) and missing * hops <= sum(left):
            take(loads[place], 1)
            taken[place] += 1
            order.append(place)
            continue
        if not order:
            return None
        place = order.pop()
        take(loads[place], -1)
        taken[place] -= 1
        place += 1
    return None


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
