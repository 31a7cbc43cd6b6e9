"""Collectives inside a switch: every head serves a share of its block in proportion to its weight."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from collc.checker.in_switch import switch_ports
from collc.errors import PackingError
from collc.packing.model import Hop, Plan, Tree
from collc.schedule.model import Schedule
from collc.schedule.trees import cut_block
from collc.topology.model import PlanGraph


def schedule_in_switch(plan: Plan, graph: PlanGraph, copies: int = 1) -> Schedule:
    """Cuts each block by the heads of `plan.in_switch`, and what a head serves into `copies` equal parts.

    The parts of a head follow one another.

    Raises:
        PackingError: no switch of the plan copies or adds.
    """
    made = plan.in_switch
    if made is None:
        raise PackingError(f"no switch that joins all GPUs can do {plan.collective.value}")
    ports = switch_ports(graph, made.switch)
    assert ports is not None
    by_block: dict[int, list[Tree]] = defaultdict(list)
    for head, weight in made.heads:
        up = [Hop(r, head, (ports[r].up, ports[head].down)) for r in graph.ranks]
        down = [Hop(head, r, (ports[head].up, ports[r].down)) for r in graph.ranks]
        reduce = tuple(up) if plan.collective.reduces else ()
        spread = tuple(down) if plan.collective.spreads else ()
        by_block[head if plan.collective.per_rank else 0] += [Tree(head, weight / copies, reduce, spread)] * copies
    parts = [part for block in sorted(by_block) for part in cut_block(block, by_block[block])]
    return Schedule(plan.collective, plan.root, graph.nranks, tuple(replace(part, in_switch=True) for part in parts))
