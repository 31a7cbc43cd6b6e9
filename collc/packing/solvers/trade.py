"""Computes the best rate, and the fewest trees, for each limit on the depth."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.packing.explain import plan_depth
from collc.packing.solve import plan
from collc.packing.solvers.dive import best_dive
from collc.packing.solvers.exact import LIST_RANKS, dives, least_depth, new_problem, outward
from collc.packing.solvers.network import Net
from collc.topology.model import PlanGraph

# The table ends at the depth that has more trees than this, because all trees of a depth are listed.
_LISTED = 4000


@dataclass(frozen=True)
class Trade:
    """The exact best rate in GB/s of trees no deeper than `depth`, and the fewest trees found at this rate."""

    depth: int
    rate: Fraction
    trees: int


def depth_trade(graph: PlanGraph, collective: Collective, root: int | None = None) -> tuple[Trade, ...]:
    """Returns a row for each depth that allows a higher rate or fewer trees, while all its trees can be listed.

    Rates are exact optima for their depth. Numbers of trees are the best found. For a collective with a root, the plan
    of the `ilp` solver is the last row if it has fewer trees at the same rate.

    Raises:
        UsageError: the collective has no trees, or the graph has too many.
    """
    if not collective.uses_trees:
        raise UsageError(f"{collective.value} is packed as flows, which have no depth to trade")
    if collective.rooted and root is None:
        root = 0
    net = outward(Net.of(graph), collective)
    net.require_connected()
    rows: list[Trade] = []
    problem = new_problem(net, collective, root, graph.servers, symmetric=False)
    generator = problem.generator()
    before = 0
    least = least_depth(generator.oracle) if net.nranks <= LIST_RANKS else net.nranks
    for depth in range(least, net.nranks):
        every = generator.oracle.all_columns(depth, _LISTED)
        if every is None or len(every) == before:
            break
        before = len(every)
        generator.fill(every)
        found = generator.exact() if {c.group for c in every} == set(range(generator.ngroups)) else None
        if found is None:
            continue
        best = best_dive(generator, found, dives(generator), 2)
        row = Trade(max(c.depth() for c, _ in best.weights), best.rate, len(best.weights))
        if not rows or (row.rate, -row.trees) > (rows[-1].rate, -rows[-1].trees):
            rows.append(row)
    if not rows:
        raise UsageError(
            f"{graph.name} has too many trees to list for {collective.value}", hint="choose fewer GPUs with --gpus"
        )
    if collective.rooted:
        few = plan(graph, collective, root, "ilp")
        assert few.rate is not None
        if few.rate == rows[-1].rate and len(few.trees) < rows[-1].trees:
            rows.append(Trade(plan_depth(few), few.rate, len(few.trees)))
    return tuple(rows)
