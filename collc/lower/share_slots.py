"""share_slots: a step that sends the same chunk to several ranks writes it once, where memory is shared.

For the host target only: on GPUs the slots lie in the receiver's memory, so each receiver needs its own copy.

Before::

    fifo 0: 0 -> 1 share 0 index 0
    fifo 1: 0 -> 2 share 0 index 0
    rank 0: copySend share 0 lag 0 send 0,1

After::

    fifo 0: 0 -> 1,2 share 0 index 0
    rank 0: copySend share 0 lag 0 send 0
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from collc.ir.nodes import Channel, Fifo, Program


def share_slots(program: Program) -> Program:
    """Merges the FIFOs of each sending step into one with several destinations, and renumbers."""
    merged: dict[int, int] = {}
    fifos: list[Fifo] = []
    used: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
    for channel in program.channels:
        for rank, steps in enumerate(channel.steps):
            for step in steps:
                if step.send:
                    dsts = tuple(sorted(dst for f in step.send for dst in program.fifos[f].dsts))
                    merged.update(dict.fromkeys(step.send, len(fifos)))
                    fifos.append(Fifo(rank, dsts, step.share, used[rank, dsts]))
                    used[rank, dsts] += 1

    def renumber(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(merged[f] for f in ids))

    channels = tuple(
        Channel(
            tuple(
                tuple(dataclasses.replace(s, recv=renumber(s.recv), send=renumber(s.send)) for s in steps)
                for steps in channel.steps
            )
        )
        for channel in program.channels
    )
    return program.replace(fifos=tuple(fifos), channels=channels)
