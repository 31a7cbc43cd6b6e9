"""pipeline_hops: sets the lags, so that in each iteration a rank works on the chunk that has just reached it.

A chunk starts at the deepest leaf of the reduction tree (height H). It reaches a rank a hops below the root after H - a
hops, the root after H hops, and a rank b hops down the broadcast tree after H + b hops. With these numbers as lags, all
ranks work on successive chunks at the same time: while the deepest leaf sends chunk k, the root finishes chunk k - H.
Every wait is then for an earlier iteration. So channels can be merged in any combination, and two slots are enough.

If there are more ranks than cores, not all ranks run at once. With more slots they can be further apart. Within one
phase the FIFOs allow this without larger lags. Between the phases it needs a larger lag, so the broadcast comes
`slots - 2` iterations later.

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
from collc.lowering.depth import carries_result, hops_before, switch_sums, through_switch


def pipeline_hops(program: Program, *, slots: int) -> Program:
    """Returns the program with new lags and `slots` slots per FIFO.

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
        reduce_shares = switch_sums(program, channel)
    else:
        reduce_shares = {
            step.share for steps in channel.steps for step in steps if step.send and not carries_result(step)
        }

    def lag(rank: int, step: Step) -> int:
        # The step of the root or head that ends the reduction also begins the broadcast. It gets no slack.
        is_broadcast = carries_result(step) and not step.input and not program.sums_in_switch(step)
        return hops(rank, step) + (slack if is_broadcast and step.share in reduce_shares else 0)

    return Channel(
        tuple(
            tuple(dataclasses.replace(step, lag=lag(rank, step)) for step in steps)
            for rank, steps in enumerate(channel.steps)
        )
    )
