"""The most rings that fit on the links together, whole links each: what NCCL searches for on NVLink meshes."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache

from collc.errors import PackingError
from collc.options import CUDA
from collc.packing.effort import Effort, OutOfEffortError
from collc.packing.rings import Load, most_rings, rings_bound
from collc.topology.model import PlanGraph

# Several rings are looked for among up to this many ranks, all of them listed; above, one ring is searched for.
LISTED = 16
# Up to so many ranks all rings are listed whatever the graph; above, where few GPUs are joined, so that it takes at
# most so many steps: the 112 rings of the 16 dies of an MI250 server take 15,000.
_ALWAYS, _LISTINGS = 9, 50_000
# Work of the search for one ring, in ranks looked at, about a tenth of a microsecond each.
_SEARCH = 1e7

Order = tuple[int, ...]
Edges = tuple[tuple[tuple[int, int], tuple[int, ...]], ...]


def disjoint_rings(
    graph: PlanGraph, paths: dict[tuple[int, int], tuple[int, ...]], *, limit: int | None = None
) -> list[Order]:
    """Directed rings through all ranks, as many as fit with one link width each; at most `limit`.

    A width is the speed of the slowest link, or of the slowest one with which at most one ring per channel fits. Where
    even one ring overloads a link (PCIe trees), one ring with the least overload is taken; where there are too many to
    list, one that is found fast.

    Raises:
        PackingError: no ring closes.
    """
    rings = None
    edges = tuple(sorted(paths.items()))
    if graph.nranks <= LISTED:
        rings = _most_of_all(graph.nranks, tuple(link.gbps for link in graph.links), edges, limit)
    if rings is None:
        rings = _search(graph.nranks, edges)
    if not rings:
        raise PackingError("no ring closes over these GPUs, or none was found in the time given to it")
    return list(rings)


@lru_cache(maxsize=64)
def _most_of_all(n: int, speeds: tuple[Fraction, ...], edges: Edges, limit: int | None) -> tuple[Order, ...] | None:
    """`disjoint_rings` among all rings, None where they are too many, none if no ring closes; seconds for 8 ranks, so
    equal servers and all collectives share the answer."""
    listed = _listed(n, edges)
    if not listed:
        return None if listed is None else ()

    def overload(load: Load) -> Fraction:
        return max(times / speeds[link] for link, times in load)

    rings: tuple[Order, ...] = ()
    for unit in sorted(set(speeds)) if limit != 1 else ():
        fitting = {load: order for load, order in listed.items() if overload(load) <= 1 / unit}
        room = [int(gbps // unit) for gbps in speeds]
        # In parts of a slow link, a mesh of fast ones has room for thousands of rings.
        if rings_bound(list(fitting), room) <= CUDA.max_channels:
            taken = most_rings(list(fitting), room)
            rings = tuple(order for order, times in zip(fitting.values(), taken, strict=True) for _ in range(times))
            break
    return rings[:limit] or (listed[min(listed, key=overload)],)


@lru_cache(maxsize=4)
def _listed(n: int, edges: Edges) -> dict[Load, Order] | None:
    """Load (link, times) -> the first ring with that load; None where listing them takes too long.

    A second or more for 9 ranks, so one ring and many rings share the answer.
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
    """One ring, depth first: the order of the ranks where it closes, else by backtracking within a budget; or none."""
    paths = dict(edges)
    natural = tuple(range(n))
    if all((a, (a + 1) % n) in paths for a in natural):
        return (natural,)
    effort = Effort(_SEARCH)
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
