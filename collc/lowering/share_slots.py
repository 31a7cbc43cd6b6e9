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

from collc.errors import IRError
from collc.ir.nodes import Channel, Fifo, Program
from collc.ir.routes import slower


def share_slots(program: Program) -> Program:
    """Merges the FIFOs of each sending step into one per server of its readers, and renumbers.

    Raises:
        IRError: a switch copies or adds, which only GPUs' do, or shares take turns in FIFOs.
    """
    if any(fifo.through for fifo in program.fifos):
        raise IRError("no switch copies or adds between the slots of processes")
    if program.takes_turns:
        raise IRError("no shares take turns in the slots of processes")
    merged: dict[int, int] = {}
    fifos: list[Fifo] = []
    used: dict[tuple[object, ...], int] = defaultdict(int)
    for channel in program.channels:
        for steps in channel.steps:
            for step in steps:
                for group in _by_server(program, step.send):
                    joined = _join([program.fifos[f] for f in group])
                    merged.update(dict.fromkeys(group, len(fifos)))
                    fifos.append(dataclasses.replace(joined, index=used[joined.memory]))
                    used[joined.memory] += 1

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


def _by_server(program: Program, sends: tuple[int, ...]) -> list[list[int]]:
    """The FIFOs of a step by the server of their readers: one memory is shared inside a server alone."""
    groups: dict[int, list[int]] = defaultdict(list)
    for f in sends:
        groups[program.server(program.fifos[f].dsts[0])].append(f)
    return list(groups.values())


def _join(fifos: list[Fifo]) -> Fifo:
    """One FIFO for all their readers, in the order of ranks, each over its own route."""
    readers = sorted((dst, f.routes[i] if f.routes else ()) for f in fifos for i, dst in enumerate(f.dsts))
    routes = tuple(route for _, route in readers) if all(f.routes for f in fifos) else ()
    link = slower(f.link for f in fifos)
    return Fifo(fifos[0].src, tuple(dst for dst, _ in readers), fifos[0].share, 0, routes, link if routes else None)
