"""share_hops: the roots of a ring share the FIFO of a hop, as in NCCL's rings; for GPUs.

Along a ring the chunks of all roots make the same hops. Where each root has FIFOs of its own, most slots wait until it
is that root's turn: a rank sends one chunk at a time. So the steps of a block become a round, the same at every rank:
first it sends a chunk of its own part, then it takes root after root what comes from the rank before it, and passes it
on. In step j a rank works on the chunk that has made j hops. So both ends of a hop see the roots in one order, and one
FIFO is enough for all of them (`Fifo.turn`), with no more slots than a FIFO that serves a single root. Partial sums on
their way to their roots do the same.

In such a round a rank waits in every step for what was sent a moment ago. So neighbours share a block, which are mostly
parts of one ring: between two steps of one part there is one of another, and hides the time of the hop.

No order of ranks deadlocks with two slots or more. Every round begins with chunks of the rank's own. Step j of a part
needs what the rank before it sent in step j - 1 and, for a free slot, that the rank behind it has done step
j + 1 - slots. All ranks have equally many steps in a round, so every wait is for an earlier place of the same round, or
for an earlier round; whatever channels are merged later. With one slot all would wait for each other, which the
verifier finds.

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
    """One FIFO for those of a channel that go the same way with the same part of several blocks.

    Args:
        limit: at most so many channels, of neighbours that take turns.

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
    used: Counter[object] = Counter()
    for channel in channels:
        for hop in _hops(program, channel):
            for turn, f in enumerate(hop):
                fifos[f] = dataclasses.replace(fifos[f], index=0, turn=turn, turns=len(hop))
            memory = fifos[hop[0]].memory
            for f in hop:
                fifos[f] = dataclasses.replace(fifos[f], index=used[memory])
            used[memory] += 1
    return program.replace(fifos=tuple(fifos), channels=channels)


def _round(program: Program, group: Sequence[Channel]) -> Channel:
    """Returns the steps of each rank in the order in which chunks arrive, all of them in one iteration."""
    ranks: list[list[tuple[int, Step]]] = [[] for _ in range(program.nranks)]
    for channel in group:
        before = hops_before(program, channel)
        for rank, steps in enumerate(channel.steps):
            ranks[rank] += [(before(rank, step), dataclasses.replace(step, lag=0)) for step in steps]
    return Channel(tuple(tuple(step for _, step in sorted(steps, key=itemgetter(0))) for steps in ranks))


def _hops(program: Program, channel: Channel) -> list[list[int]]:
    """The FIFOs that can be one, in the order of their turns."""
    found: dict[object, list[int]] = defaultdict(list)
    for steps in channel.steps:
        for step in steps:
            share = program.shares[step.share]
            for f in step.send:
                fifo = program.fifos[f]
                ends = {program.server(rank) for rank in (fifo.src, *fifo.dsts)}
                alone = f if len(fifo.dsts) > 1 or len(ends) > 1 else None
                found[fifo.src, fifo.dsts, fifo.routes, share.lo, share.hi, share.part, alone].append(f)
    return list(found.values())
