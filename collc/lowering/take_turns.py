"""take_turns: shares share a thread block, and no two blocks keep step with each other.

A block does one thing at a time: while it sends a chunk up a tree, the links down that tree are idle unless another
block feeds them. Links that several blocks feed serve them equally, so blocks with the same steps in the same order end
together, start their next step together, and go on like that: all of them on the links up, then all of them on the
links down. With one tree, half of the bandwidth is lost that way, however many blocks there are.

So each block gets a few shares and an order of its own. The steps of a round of m shares are spread over a circle of
length m: share i starts at i, each hop takes two thirds of the circle, and every step is moved on by a random part of
that. Where a step ends up on the circle is its place in the round, how often it has gone round is its lag. A chunk is
always used later than it was made, so no order can deadlock, and m chunks are a small part of a call's: two thirds of a
round per hop fill the pipeline faster than whole ones.

With random orders a closed network of M blocks over S links that each visits in turn is busy for M/(M + S - 1) of the
time (Gordon and Newell 1967; for fair sharing Baskett and others 1975): 32 blocks over 2 to 4 links, 91% to 97%.
Measured in docs/measurements/pacing.md.

Before (a chain 2 -> 1 -> 0 -> 1 -> 2 of an all_reduce, two shares, rank 2)::

    channel 0
      send share 0 lag 0 send 0
      recv share 0 lag 10 recv 3
    channel 1
      send share 1 lag 0 send 4
      recv share 1 lag 10 recv 7

After, for instance::

    channel 0
      recv share 1 lag 4 recv 7
      send share 0 lag 0 send 0
      recv share 0 lag 3 recv 3
      send share 1 lag 0 send 4
"""

from __future__ import annotations

import dataclasses
import random

from collc.errors import IRError
from collc.ir.nodes import Channel, Program, Step
from collc.lowering.depth import hops_before

# Parts of a circle position, so that all arithmetic is on integers.
_FINE = 1 << 12


def take_turns(program: Program, *, limit: int) -> Program:
    """Distributes neighbouring channels over `limit` channels, each with its own order; programs with fewer stay.

    Neighbours are mostly copies of one tree, so a heavy tree gets whole blocks and all blocks get equal work.

    Raises:
        IRError: the program has one slot per FIFO, so nothing can overlap.
    """
    assert limit >= 1
    if program.slots < 2:
        raise IRError("turns need hops that overlap", hint="run pipeline_hops first")
    n = len(program.channels)
    if n <= limit:
        return program
    rng = random.Random(n)
    channels = tuple(
        _channel(program, program.channels[c * n // limit : (c + 1) * n // limit], rng) for c in range(limit)
    )
    return program.replace(channels=channels)


def _channel(program: Program, group: tuple[Channel, ...], rng: random.Random) -> Channel:
    circle = len(group) * _FINE
    hop = 2 * circle // 3
    ranks: list[list[tuple[int, int, Step]]] = [[] for _ in range(program.nranks)]
    for turn, channel in enumerate(group):
        before = hops_before(program, channel)
        for rank, steps in enumerate(channel.steps):
            for step in steps:
                # A hop later is at least a hair later, whatever the two random parts are.
                time = turn * _FINE + hop * before(rank, step) + rng.randrange(hop)
                lag, place = divmod(time, circle)
                ranks[rank].append((place, len(ranks[rank]), dataclasses.replace(step, lag=lag)))
    return Channel(tuple(tuple(step for _, _, step in sorted(steps, key=lambda row: row[:2])) for steps in ranks))
