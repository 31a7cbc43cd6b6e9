"""How long an all_reduce takes by what people use: a plan of collc, NCCL, a single reducer, a ring by hand.

Each answers with microseconds of one call of so many bytes. Plans and NCCL's calls come from the simulator; a single
reducer and a ring of point-to-point calls are closed forms: what their transfers put on the busiest link, and a launch
for each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

from collc.choose.table import fastest
from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing.paths import Paths, shortest_paths
from collc.simulator.nccl import Nccl
from collc.simulator.params import BYTES_PER_US, Machine
from collc.simulator.run import Simulator, variants
from collc.topology.model import PlanGraph

CallTime = Callable[[int], float]


def planned(graph: PlanGraph, machine: Machine, plan: str | None = None) -> CallTime:
    """The fastest variant of collc at each size, or of one kind of plan."""
    simulator = Simulator(graph, Collective.ALL_REDUCE, None, machine)
    kinds = None if plan is None else (plan,)
    grid = variants(simulator, kinds)
    return cache(lambda size: fastest(simulator, grid, size).time_us)


def nccl(graph: PlanGraph, machine: Machine, version: str, fabric: str | None = None) -> CallTime:
    """NCCL's own choice at each size.

    Raises:
        PackingError: NCCL's model does not cover this graph.
    """
    communicator = Nccl(Simulator(graph, Collective.ALL_REDUCE, None, machine), version, fabric)
    communicator.predict(1 << 20)
    return cache(lambda size: communicator.predict(size).time_us)


def single_reducer(graph: PlanGraph, machine: Machine, root: int = 0) -> CallTime:
    """Every rank sends its buffer to one, which adds them up and sends the sum to each (Baidu 2017, "The Communication
    Problem"): the links that lead to it carry every buffer."""
    paths = shortest_paths(graph)
    others = [rank for rank in range(graph.nranks) if rank != root]
    there = _slowest(graph, machine, paths, [(rank, root) for rank in others])
    back = _slowest(graph, machine, paths, [(root, rank) for rank in others])
    fixed = 2 * (machine.launch_us + machine.protocol("Simple").hop_us)
    return lambda size: fixed + size * (there + back)


def ring_by_hand(graph: PlanGraph, machine: Machine, step_us: float | None = None) -> CallTime:
    """A ring of point-to-point calls in the order of the ranks: 2 (N - 1) steps, one after the other.

    Args:
        step_us: host time of a step; None: a launch for the transfer and one for the sum.

    Raises:
        PackingError: two neighbours have no path.
    """
    n = graph.nranks
    paths = shortest_paths(graph)
    slowest = _slowest(graph, machine, paths, [(rank, (rank + 1) % n) for rank in range(n)])
    host = 2 * machine.launch_us if step_us is None else step_us
    each = host + machine.protocol("Simple").hop_us
    return lambda size: 2 * (n - 1) * (each + size / n * slowest)


def _slowest(graph: PlanGraph, machine: Machine, paths: Paths, pairs: Iterable[tuple[int, int]]) -> float:
    """Microseconds per byte of the busiest link when every pair moves a byte."""
    load: Counter[int] = Counter()
    for pair in pairs:
        if pair not in paths:
            raise PackingError(f"no path from rank {pair[0]} to rank {pair[1]}")
        load.update(paths[pair])
    return max(
        (
            times
            / (float(graph.links[link].gbps) * BYTES_PER_US * machine.link_class(graph.links[link].kind).efficiency)
            for link, times in load.items()
        ),
        default=0.0,
    )
