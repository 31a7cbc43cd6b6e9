"""Schedules of collectives inside a switch: each head serves a part of a block in proportion to its weight."""

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
    """Returns the schedule that runs `plan.in_switch`.

    Each block is cut by its heads in proportion to their weights. If ranks have a block each, the head of a block is
    its rank.

    Args:
        graph: the graph of the plan; its links give the routes.
        copies: the number of equal parts that each head serves. They follow one another in the block.

    Raises:
        PackingError: no switch that joins all GPUs can do the collective.
    """
    in_switch = plan.in_switch
    if in_switch is None:
        raise PackingError(f"no switch that joins all GPUs can do {plan.collective.value}")
    ports = switch_ports(graph, in_switch.switch)
    assert ports is not None
    by_block: dict[int, list[Tree]] = defaultdict(list)
    for head, weight in in_switch.heads:
        up = [Hop(r, head, (ports[r].up, ports[head].down)) for r in graph.ranks]
        down = [Hop(head, r, (ports[head].up, ports[r].down)) for r in graph.ranks]
        reduce = tuple(up) if plan.collective.reduces else ()
        broadcast = tuple(down) if plan.collective.spreads else ()
        by_block[head if plan.collective.per_rank else 0] += [Tree(head, weight / copies, reduce, broadcast)] * copies
    parts = [part for block in sorted(by_block) for part in cut_block(block, by_block[block])]
    return Schedule(plan.collective, plan.root, graph.nranks, tuple(replace(part, in_switch=True) for part in parts))
