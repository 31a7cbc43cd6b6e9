"""Computes the rate of a plan whose data passes through host memory, which solvers do not model."""

from __future__ import annotations

from fractions import Fraction

from collc.packing.model import Plan
from collc.topology.model import PlanGraph
from collc.topology.staging import staged_in

Limit = tuple[Fraction, int]  # GB/s of the collective's buffer, and the vertex whose memory limits it


def host_limit(graph: PlanGraph, plan: Plan) -> Limit | None:
    """Returns the rate at which the memories of CPUs limit a plan, and the limiting CPU; None if they do not limit it.

    A byte on a path through such CPUs is written to the memory of the first one and read again. The result is also None
    for plans with orbits of trees, because the paths of the images are not known.
    """
    if plan.rate is None or plan.orbits is not None:
        return None
    loads: dict[int, Fraction] = {}
    moves = [(hop.links, tree.weight) for tree in plan.trees for hop in (*tree.reduce, *tree.broadcast)]
    for links, weight in moves + [(flow.links, flow.weight) for flow in plan.flows]:
        if (memory := staged_in(graph, links)) is not None:
            loads[memory] = loads.get(memory, Fraction(0)) + 2 * weight
    shares = [((graph.vertices[v].memory_gbps or Fraction(0)) / load, v) for v, load in sorted(loads.items())]
    least = min(shares, default=(Fraction(1), 0))
    return None if least[0] >= 1 else (plan.rate * least[0], least[1])
