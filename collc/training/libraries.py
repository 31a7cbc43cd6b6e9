"""Gives the times of an all_reduce: with a plan of collc, NCCL, a single reducer, or a ring of point-to-point calls.

Each function returns the time of a call in microseconds as a function of its bytes. The simulator gives the times of
plans and of NCCL. A single reducer and a ring of point-to-point calls are closed forms: the time of the busiest link,
and a launch for each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

from collc.choose.calls import default_calls
from collc.choose.table import choose
from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing.candidates.paths import Paths, shortest_paths
from collc.simulator.nccl import Nccl
from collc.simulator.params import BYTES_PER_US, Machine
from collc.simulator.run import Simulator
from collc.topology.model import PlanGraph

CallTime = Callable[[int], float]


def planned(graph: PlanGraph, machine: Machine, plan: str | None = None) -> CallTime:
    """Returns the time of the program that the default library runs at each size.

    Args:
        plan: a plan type, whose fastest variant is taken at each size; None for the library's choice.
    """
    simulator = Simulator(graph, Collective.ALL_REDUCE, None, machine)
    if plan is not None:
        return cache(lambda size: choose(simulator, [size], kinds=(plan,)).predictions[-1].time_us)
    calls = default_calls(simulator)
    return cache(lambda size: calls.predict(size).time_us)


def nccl(graph: PlanGraph, machine: Machine, version: str, fabric: str | None = None) -> CallTime:
    """Returns the time of NCCL's default choice at each size.

    Raises:
        PackingError: NCCL's model does not cover this graph.
    """
    communicator = Nccl(Simulator(graph, Collective.ALL_REDUCE, None, machine), version, fabric)
    communicator.predict(1 << 20)
    return cache(lambda size: communicator.predict(size).time_us)


def single_reducer(graph: PlanGraph, machine: Machine, root: int = 0) -> CallTime:
    """Returns the time of a single reducer.

    Every rank sends its buffer to `root`, which adds them up and sends the sum to each (Baidu 2017, "The Communication
    Problem"). So the links to the root carry every buffer.
    """
    paths = shortest_paths(graph)
    others = [rank for rank in range(graph.nranks) if rank != root]
    there = _slowest(graph, machine, paths, [(rank, root) for rank in others])
    back = _slowest(graph, machine, paths, [(root, rank) for rank in others])
    fixed = 2 * (machine.launch_us + machine.protocol("Simple").hop_us)
    return lambda size: fixed + size * (there + back)


def ring_by_hand(graph: PlanGraph, machine: Machine, step_us: float | None = None) -> CallTime:
    """Returns the time of a ring of point-to-point calls in the order of the ranks: 2 (N - 1) steps in a row.

    Args:
        step_us: the host time of a step; None for a launch for the transfer and one for the sum.

    Raises:
        PackingError: two neighbors have no path.
    """
    n = graph.nranks
    paths = shortest_paths(graph)
    slowest = _slowest(graph, machine, paths, [(rank, (rank + 1) % n) for rank in range(n)])
    host = 2 * machine.launch_us if step_us is None else step_us
    each = host + machine.protocol("Simple").hop_us
    return lambda size: 2 * (n - 1) * (each + size / n * slowest)


def _slowest(graph: PlanGraph, machine: Machine, paths: Paths, pairs: Iterable[tuple[int, int]]) -> float:
    """Returns the microseconds per byte of the busiest link if every pair moves a byte."""
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
