"""merge_channels: merges channels, so that a rank has no more loops than the target can run at once.

A channel is a thread block on a GPU. A few dozen thread blocks use the whole copy bandwidth; hundreds only compete for
it. The pass distributes shares round-robin, so that every channel gets long and short shares. The shares of a channel
alternate chunk by chunk, which is the fair order on a link that several trees share (Blink, section 4.2.2).

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
    """Returns the program with at most `limit` channels per rank.

    Channel c of the result has the steps of channels c, c + limit, c + 2 * limit and so on, in this order.
    """
    assert limit >= 1
    if len(program.channels) <= limit:
        return program
    groups = [program.channels[first::limit] for first in range(limit)]
    channels = tuple(
        Channel(
            tuple(tuple(step for channel in group for step in channel.steps[rank]) for rank in range(program.nranks))
        )
        for group in groups
    )
    return program.replace(channels=channels)
