"""pipeline_hops: every rank works on the chunk that has just reached it.

A chunk starts at the deepest leaf of the reduction tree (height H), reaches a rank a hops below the root after H - a
hops, the root after H, and a rank b hops down the broadcast tree after H + b. With these numbers as lags all ranks are
busy at once with successive chunks: while a leaf sends chunk k, the root finishes chunk k - H. Every wait is then for
an earlier iteration, so shares can be merged into one channel in any combination, and two slots are enough.

More slots let ranks that do not all run at once (more ranks than cores) drift apart. A FIFO inside one phase gives this
by itself; between the phases the broadcast is held back by `slots - 2` further iterations.

Before (a chain 2 -> 1 -> 0 -> 1 -> 2 of an all_reduce, rank 2)::

    send share 0 lag 0 send 0
    recv share 0 lag 0 recv 3

After, with 4 slots::

    send share 0 lag 0 send 0
    recv share 0 lag 6 recv 3
"""

from __future__ import annotations

import dataclasses

from collc.errors import IRError
from collc.ir.nodes import Channel, Program, Step
from collc.lowering.depth import added_up, carries_result, hops_before, through_switch


def pipeline_hops(program: Program, *, slots: int) -> Program:
    """Sets all lags and the number of slots.

    Raises:
        IRError: `slots` is below 2.
    """
    if slots < 2:
        raise IRError(f"hops overlap with 2 slots or more, not {slots}")
    channels = tuple(_pipeline(program, channel, slots - 2) for channel in program.channels)
    return program.replace(slots=slots, channels=channels)


def _pipeline(program: Program, channel: Channel, slack: int) -> Channel:
    hops = hops_before(program, channel)
    if through_switch(program, channel):
        reduced = added_up(program, channel)
    else:
        reduced = {step.share for steps in channel.steps for step in steps if step.send and not carries_result(step)}

    def lag(rank: int, step: Step) -> int:
        # The root's step, or the head's, ends the reduction and begins the broadcast: it is not held back.
        handed_down = carries_result(step) and not step.input and not program.sums_in_switch(step)
        return hops(rank, step) + (slack if handed_down and step.share in reduced else 0)

    return Channel(
        tuple(
            tuple(dataclasses.replace(step, lag=lag(rank, step)) for step in steps)
            for rank, steps in enumerate(channel.steps)
        )
    )
