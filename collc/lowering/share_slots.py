"""share_slots: a step that sends a chunk to several ranks of one server writes it once, into shared memory.

The pass is for the host target only. On GPUs the slots are in the memory of the receiver, so each receiver needs a
copy.

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

from collc.errors import IRError
from collc.ir.nodes import Channel, Fifo, Program
from collc.ir.routes import slower


def share_slots(program: Program) -> Program:
    """Returns a program whose steps send to one FIFO per server of their readers, with new FIFO ids.

    Raises:
        IRError: a switch copies or adds, or FIFOs are interleaved. The host target has neither.
    """
    if any(fifo.through for fifo in program.fifos):
        raise IRError("no switch copies or adds between the slots of processes")
    if program.takes_turns:
        raise IRError("no shares take turns in the slots of processes")
    new_ids: dict[int, int] = {}
    fifos: list[Fifo] = []
    next_index: dict[tuple[object, ...], int] = defaultdict(int)
    for channel in program.channels:
        for steps in channel.steps:
            for step in steps:
                for group in _by_server(program, step.send):
                    fifo = _join([program.fifos[f] for f in group])
                    new_ids.update(dict.fromkeys(group, len(fifos)))
                    fifos.append(dataclasses.replace(fifo, index=next_index[fifo.memory]))
                    next_index[fifo.memory] += 1

    def renumber(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(new_ids[f] for f in ids))

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


def _by_server(program: Program, sends: tuple[int, ...]) -> list[list[int]]:
    """Returns the FIFOs of a step, grouped by the server of their readers: only ranks of a server share memory."""
    groups: dict[int, list[int]] = defaultdict(list)
    for f in sends:
        groups[program.server(program.fifos[f].dsts[0])].append(f)
    return list(groups.values())


def _join(fifos: list[Fifo]) -> Fifo:
    """Returns one FIFO for all readers of some FIFOs, in the order of the ranks, with the route to each reader.

    It has no routes if one of the FIFOs has none. Its index is 0; the caller sets it.
    """
    readers = sorted((dst, f.routes[i] if f.routes else ()) for f in fifos for i, dst in enumerate(f.dsts))
    routes = tuple(route for _, route in readers) if all(f.routes for f in fifos) else ()
    link = slower(f.link for f in fifos)
    return Fifo(fifos[0].src, tuple(dst for dst, _ in readers), fifos[0].share, 0, routes, link if routes else None)
