"""Maximum flows and smallest minimum cuts are compared with an enumeration of all cuts of small networks."""

from __future__ import annotations

import itertools
import random

import pytest

from collc.packing.solvers.maxflow import FlowNetwork


def smallest_cut(
    arcs: list[tuple[int, int]], capacities: list[int], nverts: int, source: int, sink: int
) -> tuple[int, set[int]]:
    """Returns the least capacity that leaves a side with the source, and the intersection of all such sides."""
    middle = [v for v in range(nverts) if v not in (source, sink)]
    sides = [{source, *chosen} for size in range(len(middle) + 1) for chosen in itertools.combinations(middle, size)]
    leaving = [
        sum(c for (tail, head), c in zip(arcs, capacities, strict=True) if tail in side and head not in side)
        for side in sides
    ]
    least = min(leaving)
    return least, set.intersection(*(side for side, out in zip(sides, leaving, strict=True) if out == least))


@pytest.mark.parametrize("unit", [1, 10**20 + 7], ids=["exact-in-doubles", "beyond-doubles"])
@pytest.mark.parametrize("seed", range(25))
def test_flows_and_smallest_cuts_are_those_of_all_cuts(seed: int, unit: int) -> None:
    rng = random.Random(seed)
    nverts = rng.randrange(2, 8)
    arcs = [(rng.randrange(nverts), rng.randrange(nverts)) for _ in range(rng.randrange(1, 20))]
    arcs = [(tail, head) for tail, head in arcs if tail != head]
    capacities = [rng.randrange(4) * unit + (rng.randrange(3) if unit > 1 else 0) for _ in arcs]
    network = FlowNetwork(nverts, arcs)
    for source, sink in ((0, nverts - 1), (nverts - 1, 0)):
        value, side = smallest_cut(arcs, capacities, nverts, source, sink)
        assert network.maximum_flow(capacities, source, sink) == value
        assert network.source_side(capacities, source, sink) == side
