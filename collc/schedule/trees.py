"""Schedules of tree collectives: each tree serves a part of its block in proportion to its weight.

All trees then finish at the same time, so the collective reaches the rate of the packing (Blink, Wang et al., MLSys
2020, section 3.1).
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction

from collc.errors import PackingError
from collc.packing.model import Plan, Tree
from collc.schedule.model import MAX_DENOMINATOR, Part, Schedule


def schedule_trees(plan: Plan, nranks: int) -> Schedule:
    """Returns the schedule of a plan, with one part of its block per tree.

    If there is only one rank, one part covers the whole block.

    Raises:
        PackingError: the collective of the plan is a flow.
    """
    if not plan.collective.uses_trees:
        raise PackingError(f"{plan.collective.value} is a flow, not a tree collective")
    if nranks == 1:
        return Schedule(plan.collective, plan.root, 1, (Part(0, Fraction(0), Fraction(1), 0),))
    by_block: dict[int, list[Tree]] = defaultdict(list)
    for tree in plan.trees:
        by_block[tree.root if plan.collective.per_rank else 0].append(tree)
    parts = [part for block in sorted(by_block) for part in cut_block(block, by_block[block])]
    return Schedule(plan.collective, plan.root, nranks, tuple(parts))


def cut_block(block: int, trees: list[Tree]) -> list[Part]:
    """Returns one part of a block per tree, in the order of the trees, with widths in proportion to their weights.

    If the common denominator of the boundaries is above `MAX_DENOMINATOR`, they are rounded to multiples of its inverse
    (about 1e-9 of the block), because the runtime cuts buffers with 64-bit integers. A tree whose part is then empty
    gets no part.
    """
    total = sum((tree.weight for tree in trees), Fraction(0))
    ends: list[Fraction] = []
    for tree in trees:
        ends.append((ends[-1] if ends else Fraction(0)) + tree.weight / total)
    if math.lcm(*(end.denominator for end in ends)) > MAX_DENOMINATOR:
        ends = [Fraction(round(end * MAX_DENOMINATOR), MAX_DENOMINATOR) for end in ends]
    parts: list[Part] = []
    begin = Fraction(0)
    for tree, end in zip(trees, ends, strict=True):
        if end > begin:
            reduce = tuple((hop.src, hop.dst) for hop in tree.reduce)
            broadcast = tuple((hop.src, hop.dst) for hop in tree.broadcast)
            routes = tuple(hop.links for hop in (*tree.reduce, *tree.broadcast))
            parts.append(Part(block, begin, end, tree.root, reduce, broadcast, routes))
            begin = end
    return parts
