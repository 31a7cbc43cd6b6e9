"""fuse_copies: a rank that sends its input and also stores it does both in one pass over memory.

Before::

    send share 0 lag 0 send 0,1
    copy share 0 lag 0

After::

    copySend share 0 lag 0 send 0,1
"""

from __future__ import annotations

import dataclasses

from collc.ir.nodes import Channel, Program, Step


def fuse_copies(program: Program) -> Program:
    """Merges each `send` with a `copy` of the same share and lag that follows it directly."""
    channels = tuple(Channel(tuple(_fuse(steps) for steps in channel.steps)) for channel in program.channels)
    return program.replace(channels=channels)


def _fuse(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    fused: list[Step] = []
    for step in steps:
        last = fused[-1] if fused else None
        if last and last.name == "send" and step.name == "copy" and (last.share, last.lag) == (step.share, step.lag):
            fused[-1] = dataclasses.replace(last, output=True)
        else:
            fused.append(step)
    return tuple(fused)
