"""How far each rank is from the root of the share it works on, read off the FIFOs."""

from __future__ import annotations

from collections import defaultdict

from collc.ir.nodes import Channel, Program

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
