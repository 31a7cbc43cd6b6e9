"""Searches the most rings of whole links that fit on the links together, as NCCL does on NVLink meshes."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache

from collc.errors import PackingError
from collc.options import CUDA
from collc.packing.candidates.ring_rates import Load, most_rings, rings_bound
from collc.packing.solvers.effort import Effort, OutOfEffortError
from collc.topology.model import PlanGraph

# Up to this many ranks all rings are listed to find several; above, one ring is searched.
LISTED = 16
# Up to _ALWAYS ranks all rings are always listed. Above, they are listed only if that takes at most _LISTINGS steps,
# because few GPUs are joined: the 112 rings of the 16 dies of an MI250 server take 15,000.
_ALWAYS, _LISTINGS = 9, 50_000
# The budget of the search for one ring, in ranks looked at. Each takes about a tenth of a microsecond.
_SEARCH_EFFORT = 1e7

Order = tuple[int, ...]
Edges = tuple[tuple[tuple[int, int], tuple[int, ...]], ...]


def disjoint_rings(
    graph: PlanGraph, paths: dict[tuple[int, int], tuple[int, ...]], *, limit: int | None = None
) -> list[Order]:
    """Returns as many directed rings through all ranks as fit, each with the width of one link.

    The width is the smallest speed of a link that limits the number of rings to the number of channels. If even one
    ring overloads a link (PCIe trees), the result is the ring with the least overload. If there are too many rings to
    list, the result is one ring that is found fast.

    Args:
        paths: the path of each hop between two ranks.
        limit: the most rings to return.

    Raises:
        PackingError: no ring closes, or none was found within the budget.
    """
    rings = None
    edges = tuple(sorted(paths.items()))
    if graph.nranks <= LISTED:
        rings = _most_of_all(graph.nranks, tuple(link.gbps for link in graph.links), edges, limit)
    if rings is None:
        rings = _search(graph.nranks, edges)
    if not rings:
        raise PackingError("no ring closes over these GPUs, or none was found within the limit of the search")
    return list(rings)


@lru_cache(maxsize=64)
def _most_of_all(n: int, speeds: tuple[Fraction, ...], edges: Edges, limit: int | None) -> tuple[Order, ...] | None:
    """Returns `disjoint_rings` from a list of all rings; None if they are too many, empty if no ring closes.

    This takes seconds for 8 ranks, so equal servers and all collectives share the result.
    """
    listed = _listed(n, edges)
    if not listed:
        return None if listed is None else ()

    def overload(load: Load) -> Fraction:
        return max(times / speeds[link] for link, times in load)

    rings: tuple[Order, ...] = ()
    for unit in sorted(set(speeds)) if limit != 1 else ():
        fitting = {load: order for load, order in listed.items() if overload(load) <= 1 / unit}
        room = [int(gbps // unit) for gbps in speeds]
        # Thousands of rings with the width of a slow link may fit on a mesh of fast links.
        if rings_bound(list(fitting), room) <= CUDA.max_channels:
            taken = most_rings(list(fitting), room)
            rings = tuple(order for order, times in zip(fitting.values(), taken, strict=True) for _ in range(times))
            break
    return rings[:limit] or (listed[min(listed, key=overload)],)


@lru_cache(maxsize=4)
def _listed(n: int, edges: Edges) -> dict[Load, Order] | None:
    """Returns load (link, times) -> the first ring with that load; None if listing them takes too many steps.

    This takes a second or more for 9 ranks, so the plans of one ring and of many rings share the result.
    """
    paths = dict(edges)
    found: dict[Load, Order] = {}
    stack: list[Order] = [(0,)]
    steps = 0
    while stack:
        way = stack.pop()
        steps += 1
        if steps > _LISTINGS and n > _ALWAYS:
            return None
        if len(way) < n:
            stack += [(*way, v) for v in range(n - 1, 0, -1) if v not in way and (way[-1], v) in paths]
        elif (way[-1], 0) in paths:
            load = Counter(link for edge in zip(way, (*way[1:], 0), strict=True) for link in paths[edge])
            found.setdefault(tuple(sorted(load.items())), way)
    return found


@lru_cache(maxsize=64)
def _search(n: int, edges: Edges) -> tuple[Order, ...]:
    """Returns one ring: the order of the ranks if it closes, else the first one of a depth-first search; or none.

    The search ends at a budget.
    """
    paths = dict(edges)
    natural = tuple(range(n))
    if all((a, (a + 1) % n) in paths for a in natural):
        return (natural,)
    effort = Effort(_SEARCH_EFFORT)
    stack: list[Order] = [(0,)]
    with suppress(OutOfEffortError):
        while stack:
            effort.spend(n)
            way = stack.pop()
            if len(way) == n and (way[-1], 0) in paths:
                return (way,)
            on_it = set(way)
            stack += [(*way, v) for v in range(n - 1, 0, -1) if v not in on_it and (way[-1], v) in paths]
    return ()
