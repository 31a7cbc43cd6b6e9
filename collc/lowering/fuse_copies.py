"""fuse_copies: merges two steps, so that a rank that sends and also stores its input reads it once.

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
    """Returns the program in which each `send` is merged with a `copy` of the same share and lag directly after it."""
    channels = tuple(Channel(tuple(_fuse(steps) for steps in channel.steps)) for channel in program.channels)
    return program.replace(channels=channels)


def _fuse(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    result: list[Step] = []
    for step in steps:
        last = result[-1] if result else None
        if last and last.name == "send" and step.name == "copy" and (last.share, last.lag) == (step.share, step.lag):
            result[-1] = dataclasses.replace(last, output=True)
        else:
            result.append(step)
    return tuple(result)
