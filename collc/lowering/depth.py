"""How far each rank is from the root of the share it works on, read off the FIFOs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from collc.ir.nodes import Channel, Program, Step, Through

Depths = dict[tuple[int, int], int]


def depths(program: Program, channel: Channel, *, finished: bool) -> Depths:
    """(rank, share) -> hops to the root.

    Args:
        finished: True for the hops by which a finished result comes down from the root, False for the hops by which
            partial results go up to it. Ranks that take no part in a phase are absent.
    """
    children: dict[tuple[int, int], list[int]] = defaultdict(list)
    below: set[tuple[int, int]] = set()
    for rank, steps in enumerate(channel.steps):
        for step in steps:
            if finished == (step.output or not step.input):
                for f in step.send:
                    for dst in program.fifos[f].dsts:
                        parent, child = (rank, dst) if finished else (dst, rank)
                        children[parent, step.share].append(child)
                        below.add((child, step.share))
    front = [key for key in children if key not in below]
    found: Depths = dict.fromkeys(front, 0)
    while front:
        front = [
            (child, share)
            for rank, share in front
            for child in children[rank, share]
            if _set(found, rank, child, share)
        ]
    return found


def _set(found: Depths, rank: int, child: int, share: int) -> bool:
    if (child, share) in found:
        return False
    found[child, share] = found[rank, share] + 1
    return True


def carries_result(step: Step) -> bool:
    """Whether what the step sends or stores is finished."""
    return step.output or not step.input


def hops_before(program: Program, channel: Channel) -> Callable[[int, Step], int]:
    """(rank, step) -> hops that a chunk has made when the step gets it, from the deepest leaf of the reduction on.

    A chunk reaches a rank a hops below the root after H - a hops, where H is the height of the reduction tree, the root
    after H, and a rank b hops down the broadcast tree after H + b.
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
    """Whether a switch copies or adds for the channel's shares."""
    return any(program.fifos[f].through for steps in channel.steps for step in steps for f in (*step.recv, *step.send))


def added_up(program: Program, channel: Channel) -> set[int]:
    """The shares of the channel that a switch adds up."""
    return {step.share for steps in channel.steps for step in steps if program.sums_in_switch(step)}


def _switch_hops(program: Program, channel: Channel) -> Callable[[int, Step], int]:
    """The head reads the sum one hop after all have put their input; the copies are there one hop after its store."""
    summed = added_up(program, channel)

    def hops(rank: int, step: Step) -> int:
        if not step.recv:
            return 0
        if program.fifos[step.recv[0]].through is Through.SUM:
            return 1
        return 1 + (step.share in summed)

    return hops
