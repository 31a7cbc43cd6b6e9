"""The most rings that fit on the links together, whole links each: what NCCL searches for on NVLink meshes."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import lru_cache

from collc.errors import PackingError
from collc.packing.rings import Load, most_rings
from collc.topology.model import PlanGraph

# Several rings are looked for among up to this many ranks, all of them listed; above, one ring is searched for.
LISTED = 16
# Up to so many ranks all rings are listed whatever the graph; above, where few GPUs are joined, so that it takes at
# most so many steps: the 112 rings of the 16 dies of an MI250 server take 15,000.
_ALWAYS, _LISTINGS = 9, 50_000
_SEARCH = 200_000

Paths = dict[tuple[int, int], tuple[int, ...]]
Order = tuple[int, ...]


def disjoint_rings(graph: PlanGraph, paths: Paths, *, limit: int | None = None) -> list[Order]:
    """Directed rings through all ranks, as many as fit with one link width each; at most `limit`.

    A width is the speed of the slowest link. Where even one ring overloads a link (PCIe trees), one ring with the least
    overload is taken; where there are too many to list, one that is found fast.

    Raises:
        PackingError: no ring closes.
    """
    found = None
    if graph.nranks <= LISTED:
        speeds = tuple(link.gbps for link in graph.links)
        found = _most_of_all(graph.nranks, speeds, tuple(sorted(paths.items())), limit)
    return [_search(graph.nranks, paths)] if found is None else list(found)


@lru_cache(maxsize=64)
def _most_of_all(
    n: int, speeds: tuple[Fraction, ...], ways: tuple[tuple[tuple[int, int], tuple[int, ...]], ...], limit: int | None
) -> tuple[Order, ...] | None:
    """`disjoint_rings` among all rings, None where they are too many; seconds for 8 ranks, so equal servers and all
    collectives share the answer."""
    paths = dict(ways)
    listed = _listed(n, paths)
    if listed is None:
        return None
    if not listed:
        raise PackingError("no ring closes over these GPUs")
    unit = min(speeds)
    room = [int(gbps // unit) for gbps in speeds]

    def overload(load: Load) -> float:
        return max(times / room[link] for link, times in load)

    fitting = {load: order for load, order in listed.items() if overload(load) <= 1}
    if not fitting or limit == 1:
        return (listed[min(listed, key=overload)],)
    taken = most_rings(list(fitting), room)
    rings = tuple(order for order, times in zip(fitting.values(), taken, strict=True) for _ in range(times))
    if not rings:  # the search ended at its limit with none
        return (listed[min(listed, key=overload)],)
    return rings if limit is None else rings[:limit]


def _listed(n: int, paths: Paths) -> dict[Load, Order] | None:
    """Load (link, times) -> the first ring with that load; None where listing them takes too long."""
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


def _search(n: int, paths: Paths) -> Order:
    """One ring, depth first: the order of the ranks where it closes, else by backtracking within a budget."""
    natural = tuple(range(n))
    if all((a, (a + 1) % n) in paths for a in natural):
        return natural
    stack: list[Order] = [(0,)]
    for _ in range(_SEARCH):
        if not stack:
            break
        way = stack.pop()
        if len(way) == n and (way[-1], 0) in paths:
            return way
        on_it = set(way)
        stack += [(*way, v) for v in range(n - 1, 0, -1) if v not in on_it and (way[-1], v) in paths]
    raise PackingError("no ring closes over these GPUs, or none was found in the time given to it")
