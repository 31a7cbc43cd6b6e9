"""Programs of one collective over links of one class each -> one program that is cut into these classes.

Before: two programs, each of which moves every block whole. After (weights nvlink:3,pcie:1): each call gives the first
one the first three quarters of every block and the second one the rest, or whatever its own weights say::

    share 0: block 0 [0, 1/2)           share 0: block 0 [0, 1/2) nvlink
    share 1: block 0 [1/2, 1)     ->    share 1: block 0 [1/2, 1) nvlink
    share 0: block 0 [0, 1)             share 2: block 0 [0, 1) pcie

Shares, FIFOs and channels stand one behind the other. Channels are not merged, so that no class waits for another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from collc.errors import IRError
from collc.ir.nodes import Channel, Fifo, Program, Share, Step
from collc.topology.model import JOINT


def join_classes(programs: Mapping[str, Program], weights: Mapping[str, int]) -> Program:
    """Joins the programs of several classes.

    Args:
        programs: by class, a member of `JOINT`; alike in collective, root, ranks, servers and slots.
        weights: of the same classes, each above 0.

    Raises:
        IRError: the programs are not alike, their classes not those of the weights, or shares take turns in FIFOs
            of the network.
    """
    names = [name for name in JOINT if name in programs]
    if not names or set(weights) != set(programs) or len(names) != len(programs):
        raise IRError(f"programs of {', '.join(programs)} have weights of {', '.join(weights)}")
    first = programs[names[0]]
    shares: list[Share] = []
    fifos: list[Fifo] = []
    channels: list[Channel] = []
    for name in names:
        one = programs[name]
        if (one.collective, one.root, one.nranks, one.slots, one.servers) != (
            *(first.collective, first.root, first.nranks, first.slots, first.servers),
        ):
            raise IRError(f"the program of {name} is of another collective, root or shape than that of {names[0]}")
        if name == "net" and one.takes_turns:
            raise IRError("no shares take turns in what couriers carry")
        at_share, at_fifo = len(shares), len(fifos)
        used = {fifo.place for fifo in fifos}
        shares += [dataclasses.replace(share, part=JOINT.index(name)) for share in one.shares]
        for fifo in one.fifos:
            fifo = dataclasses.replace(fifo, share=fifo.share + at_share)
            while fifo.place in used:  # as where FIFOs have no routes
                fifo = dataclasses.replace(fifo, index=fifo.index + 1)
            used.add(fifo.place)
            fifos.append(fifo)
        channels += [
            Channel(tuple(tuple(_moved(step, at_share, at_fifo) for step in steps) for steps in channel.steps))
            for channel in one.channels
        ]
    return first.replace(
        chunk_bytes=max(one.chunk_bytes for one in programs.values()),
        shares=tuple(shares),
        fifos=tuple(fifos),
        channels=tuple(channels),
        weights=tuple(weights.get(name, 0) for name in JOINT),
    )


def _moved(step: Step, at_share: int, at_fifo: int) -> Step:
    return dataclasses.replace(
        step,
        share=step.share + at_share,
        recv=tuple(f + at_fifo for f in step.recv),
        send=tuple(f + at_fifo for f in step.send),
    )
