"""share_hops: interleaves the FIFOs of all roots of a ring at each hop, so that they share slots; for GPUs.

Along a ring the chunks of all roots make the same hops. A rank sends one chunk at a time. So with a separate queue for
each root most slots would be idle. In the result the steps of a thread block form a round with the same steps on every
rank: the rank sends a chunk of its part, then receives a chunk of each other root from the previous rank and forwards
it. In step j a rank processes the chunk that has made j hops. So both ends of a hop process the roots in the same
order, and the FIFOs of all roots can share the slots of one (`Fifo.turn`). Partial sums on their way to their roots are
ordered in the same way.

In such a round every step of a part but the first waits for a chunk that the previous rank has just sent. So channels
that follow each other, which are mostly parts of one ring, share a thread block: between two steps of one part there is
a step of another part, which hides the latency of the hop.

With two slots or more, no order of ranks deadlocks. Every round begins with chunks of the rank's part. Step j of a part
waits until the previous rank has sent in step j - 1 and, for a free slot, until the next rank has finished step j + 1 -
slots. All ranks have the same number of steps in a round. So every wait is for an earlier step of the same round or for
an earlier round. This holds for any later merge of channels. With one slot all ranks would wait for each other, which
the verifier reports.

Before (an all_gather of 3 ranks, rank 0)::

    fifo 0: 0 -> 1 share 0 index 0
    fifo 5: 0 -> 1 share 2 index 1
    copySend share 0 lag 0 send 0
    recv share 1 lag 2 recv 3
    recvCopySend share 2 lag 1 recv 4 send 5

After::

    fifo 0: 0 -> 1 share 0 index 0 turn 0/2
    fifo 5: 0 -> 1 share 2 index 0 turn 1/2
    copySend share 0 lag 0 send 0
    recvCopySend share 2 lag 0 recv 4 send 5
    recv share 1 lag 0 recv 3
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import itemgetter

from collc.errors import IRError
from collc.ir.nodes import Channel, Program, Step
from collc.lowering.depth import hops_before


def share_hops(program: Program, *, limit: int) -> Program:
    """Returns a program whose FIFOs share slots if they have the same channel, route and part of their blocks, one
    reader, and one server.

    Args:
        limit: the largest number of channels. Each channel of the result has the steps of consecutive channels.

    Raises:
        IRError: a switch copies or adds.
    """
    assert limit >= 1
    if program.in_switch:
        raise IRError("no chunks take turns on their way through a switch")
    n, count = len(program.channels), min(limit, len(program.channels))
    groups = (program.channels[c * n // count : (c + 1) * n // count] for c in range(count))
    channels = tuple(_round(program, group) for group in groups)
    fifos = list(program.fifos)
    next_index: Counter[object] = Counter()
    for channel in channels:
        for hop in _shared_hops(program, channel):
            for turn, f in enumerate(hop):
                fifos[f] = dataclasses.replace(fifos[f], index=0, turn=turn, turns=len(hop))
            memory = fifos[hop[0]].memory
            for f in hop:
                fifos[f] = dataclasses.replace(fifos[f], index=next_index[memory])
            next_index[memory] += 1
    return program.replace(fifos=tuple(fifos), channels=channels)


def _round(program: Program, group: Sequence[Channel]) -> Channel:
    """Returns one channel with the steps of a group, ordered by the hops of their chunks, with lag 0."""
    ranks: list[list[tuple[int, Step]]] = [[] for _ in range(program.nranks)]
    for channel in group:
        hops_to = hops_before(program, channel)
        for rank, steps in enumerate(channel.steps):
            ranks[rank] += [(hops_to(rank, step), dataclasses.replace(step, lag=0)) for step in steps]
    return Channel(tuple(tuple(step for _, step in sorted(steps, key=itemgetter(0))) for steps in ranks))


def _shared_hops(program: Program, channel: Channel) -> list[list[int]]:
    """Returns the groups of FIFOs of a channel that can share slots, each in the order of the turns.

    A FIFO with several readers, or between servers, is a group without others.
    """
    hops: dict[object, list[int]] = defaultdict(list)
    for steps in channel.steps:
        for step in steps:
            share = program.shares[step.share]
            for f in step.send:
                fifo = program.fifos[f]
                servers = {program.server(rank) for rank in (fifo.src, *fifo.dsts)}
                exclusive = f if len(fifo.dsts) > 1 or len(servers) > 1 else None
                hops[fifo.src, fifo.dsts, fifo.routes, share.lo, share.hi, share.part, exclusive].append(f)
    return list(hops.values())
