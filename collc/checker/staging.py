"""What a plan reaches where its data pass through host memory: trees are packed on links alone."""

from __future__ import annotations

from fractions import Fraction

from collc.packing.model import Plan
from collc.topology.model import PlanGraph
from collc.topology.staging import staged_in

Limit = tuple[Fraction, int]  # GB/s of the collective's buffer, and the vertex whose memory limits it


def host_limit(graph: PlanGraph, plan: Plan) -> Limit | None:
    """The most that this plan reaches through the memories of its CPUs; None where they do not limit it.

    A byte on a path with such a CPU is written to the memory of the first one and read again. Plans that list orbits of
    trees have no answer here: their trees say nothing of the paths of their images.
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
