"""The number of hops between each rank and the root of each share, as the FIFOs of a channel show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from collc.ir.nodes import Channel, Program, Step, Through

# (rank, share) -> hops to the root of the share.
Depths = dict[tuple[int, int], int]


def depths(program: Program, channel: Channel, *, finished: bool) -> Depths:
    """Returns the hops from each rank to the root of each share, in one phase.

    Ranks that neither send nor receive in the phase are absent.

    Args:
        finished: True for the broadcast of results from the root, False for the reduction of partial results toward
            the root.
    """
    children: dict[tuple[int, int], list[int]] = defaultdict(list)
    has_parent: set[tuple[int, int]] = set()
    for rank, steps in enumerate(channel.steps):
        for step in steps:
            if finished == carries_result(step):
                for f in step.send:
                    for dst in program.fifos[f].dsts:
                        parent, child = (rank, dst) if finished else (dst, rank)
                        children[parent, step.share].append(child)
                        has_parent.add((child, step.share))
    front = [key for key in children if key not in has_parent]
    result: Depths = dict.fromkeys(front, 0)
    while front:
        front = [
            (child, share)
            for rank, share in front
            for child in children[rank, share]
            if _set_depth(result, rank, child, share)
        ]
    return result


def _set_depth(result: Depths, rank: int, child: int, share: int) -> bool:
    """Sets the depth of a child of a rank; returns False if the child has a depth already."""
    if (child, share) in result:
        return False
    result[child, share] = result[rank, share] + 1
    return True


def carries_result(step: Step) -> bool:
    """Returns whether the value of the step is a result of the collective, not a partial one.

    A step with a partial value reads the input and stores nothing. The root of a broadcast matches this rule until
    `fuse_copies` has merged its `send` with its `copy`, so that pass must come first.
    """
    return step.output or not step.input


def hops_before(program: Program, channel: Channel) -> Callable[[int, Step], int]:
    """Returns a function of a rank and a step: the hops that a chunk has made when it reaches the step.

    The count begins at the deepest leaf of the reduction tree, whose height is H. A chunk reaches a rank a hops below
    the root after H - a hops, the root after H, and a rank b hops down the broadcast tree after H + b.
    """
    if through_switch(program, channel):
        return _switch_hops(program, channel)
    up = depths(program, channel, finished=False)
    down = depths(program, channel, finished=True)
    height: dict[int, int] = {}
    for (_, share), depth in up.items():
        height[share] = max(height.get(share, 0), depth)

    def hops(rank: int, step: Step) -> int:
        top = height.get(step.share, 0)
        key = (rank, step.share)
        return top + down[key] if carries_result(step) and down.get(key) else top - up.get(key, 0)

    return hops


def through_switch(program: Program, channel: Channel) -> bool:
    """Returns whether a switch copies or adds for some step of the channel."""
    return any(program.fifos[f].through for steps in channel.steps for step in steps for f in (*step.recv, *step.send))


def switch_sums(program: Program, channel: Channel) -> set[int]:
    """Returns the shares of the channel that a switch adds up."""
    return {step.share for steps in channel.steps for step in steps if program.sums_in_switch(step)}


def _switch_hops(program: Program, channel: Channel) -> Callable[[int, Step], int]:
    """Returns the function of `hops_before` for a channel through a switch.

    A step that receives nothing comes after 0 hops. The head reads the sum after one hop. A rank reads its copy one hop
    after the store of the head, which comes after 1 hop if the switch adds up the share and after 0 hops if not.
    """
    sums = switch_sums(program, channel)

    def hops(rank: int, step: Step) -> int:
        if not step.recv:
            return 0
        if program.fifos[step.recv[0]].through is Through.SUM:
            return 1
        return 1 + (step.share in sums)

    return hops
