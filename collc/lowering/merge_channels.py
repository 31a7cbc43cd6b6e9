"""merge_channels: no more loops per rank than the target can run at once.

A channel is a thread block on a GPU: a few dozen fill its copy bandwidth, hundreds only fight for it. Shares are dealt
round-robin, so that every channel gets long and short ones, and take turns chunk by chunk inside a channel: that is the
fair order on a link that several trees share (Blink, section 4.2.2).

Before (at most 1 channel)::

    channel 0
      rank 0
        copySend share 0 lag 0 send 0
    channel 1
      rank 0
        copySend share 1 lag 0 send 1

After::

    channel 0
      rank 0
        copySend share 0 lag 0 send 0
        copySend share 1 lag 0 send 1
"""

from __future__ import annotations

from collc.ir.nodes import Channel, Program


def merge_channels(program: Program, *, limit: int) -> Program:
    """Deals the channels onto at most `limit` channels."""
    assert limit >= 1
    if len(program.channels) <= limit:
        return program
    dealt = [program.channels[first::limit] for first in range(limit)]
    merged = tuple(
        Channel(
            tuple(tuple(step for channel in group for step in channel.steps[rank]) for rank in range(program.nranks))
        )
        for group in dealt
    )
    return program.replace(channels=merged)
