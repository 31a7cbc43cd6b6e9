"""Programs of one collective, one per path class -> one multi-path program.

Before: two programs; each moves the whole of every block. After, with weights nvlink:3,pcie:1: a call that names no
weights gives the first three quarters of every block to the first program and the rest to the second::

    nvlink  share 0: block 0 [0, 1/2)           share 0: block 0 [0, 1/2) nvlink
    nvlink  share 1: block 0 [1/2, 1)     ->    share 1: block 0 [1/2, 1) nvlink
    pcie    share 0: block 0 [0, 1)             share 2: block 0 [0, 1) pcie

The shares, FIFOs and channels of the programs follow each other. The pass does not merge channels, so that no path
class waits for another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from collc.errors import IRError
from collc.ir.nodes import Channel, Fifo, Program, Share, Step
from collc.topology.model import JOINT


def join_classes(programs: Mapping[str, Program], weights: Mapping[str, int]) -> Program:
    """Returns the multi-path program.

    Args:
        programs: one program for each of some path classes of `JOINT`. They have the same collective, root, ranks,
            servers and slots. The result has the largest of their `chunk_bytes`.
        weights: the weight of each of these path classes, above 0.

    Raises:
        IRError: the programs differ in one of these, `weights` names other path classes or is not above 0, or FIFOs of
            the network are interleaved: a proxy thread serves its queues one by one.
    """
    names = [name for name in JOINT if name in programs]
    if not names or set(weights) != set(programs) or len(names) != len(programs):
        raise IRError(f"programs of {', '.join(programs)} have weights of {', '.join(weights)}")
    if min(weights.values()) < 1:
        raise IRError(f"the weight of a path class is above 0, not {min(weights.values())}")
    first = programs[names[0]]
    shares: list[Share] = []
    fifos: list[Fifo] = []
    channels: list[Channel] = []
    for name in names:
        program = programs[name]
        if _shape(program) != _shape(first):
            raise IRError(f"the program of {name} is of another collective, root or shape than that of {names[0]}")
        if name == "net" and program.takes_turns:
            raise IRError("FIFOs of the network cannot be interleaved")
        first_share, first_fifo = len(shares), len(fifos)
        places = {fifo.place for fifo in fifos}
        shares += [dataclasses.replace(share, part=JOINT.index(name)) for share in program.shares]
        for fifo in program.fifos:
            fifo = dataclasses.replace(fifo, share=fifo.share + first_share)
            while fifo.place in places:  # without routes, FIFOs of two path classes can have the same place
                fifo = dataclasses.replace(fifo, index=fifo.index + 1)
            places.add(fifo.place)
            fifos.append(fifo)
        channels += [
            Channel(tuple(tuple(_renumber(step, first_share, first_fifo) for step in steps) for steps in channel.steps))
            for channel in program.channels
        ]
    return first.replace(
        chunk_bytes=max(program.chunk_bytes for program in programs.values()),
        shares=tuple(shares),
        fifos=tuple(fifos),
        channels=tuple(channels),
        weights=tuple(weights.get(name, 0) for name in JOINT),
    )


def _shape(program: Program) -> tuple[object, ...]:
    """Returns what all programs must have in common."""
    return (program.collective, program.root, program.nranks, program.slots, program.servers)


def _renumber(step: Step, first_share: int, first_fifo: int) -> Step:
    """Returns a step of a program whose shares and FIFOs have moved to these places."""
    return dataclasses.replace(
        step,
        share=step.share + first_share,
        recv=tuple(fifo + first_fifo for fifo in step.recv),
        send=tuple(fifo + first_fifo for fifo in step.send),
    )
