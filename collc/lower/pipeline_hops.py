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

from collc.ir.nodes import Channel, Program
from collc.lower.depth import depths


def pipeline_hops(program: Program, *, slots: int) -> Program:
    """Sets all lags and the number of slots (at least 2)."""
    assert slots >= 2
    channels = tuple(_pipeline(program, channel, slots - 2) for channel in program.channels)
    return program.replace(slots=slots, channels=channels)


def _pipeline(program: Program, channel: Channel, slack: int) -> Channel:
    up = depths(program, channel, finished=False)
    down = depths(program, channel, finished=True)
    height: dict[int, int] = {}
    for (_, share), depth in up.items():
        height[share] = max(height.get(share, 0), depth)

    def lag(rank: int, share: int, carries_result: bool) -> int:
        top = height.get(share, 0)
        if not carries_result or not down.get((rank, share)):
            return top - up.get((rank, share), 0)
        return top + down[rank, share] + (slack if top else 0)

    return Channel(
        tuple(
            tuple(dataclasses.replace(step, lag=lag(rank, step.share, step.output or not step.input)) for step in steps)
            for rank, steps in enumerate(channel.steps)
        )
    )
