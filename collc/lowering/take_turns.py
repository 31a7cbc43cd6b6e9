"""take_turns: several shares take turns in each thread block, in orders that differ between the blocks.

Below, a block is a thread block. A block runs one step at a time: while it sends a chunk up a tree, the links down that
tree are idle unless another block uses them. Links serve several blocks equally. So blocks with the same steps in the
same order finish a step together and start the next one together: all of them use the links up, then all of them use
the links down. With one tree this loses half of the bandwidth for any number of blocks.

So the pass gives each block a few shares and a different order of steps. It places the steps of a round on a circle so
that the load of all links is even (`collc.lowering.even_rounds`). The position of a step on the circle is its place in
the round, and the number of full circles before it is its lag. A chunk is always read later than it was sent, so no
order can deadlock. The pass distributes the shares of an all_reduce round-robin: each block then has shares of many
trees, and the blocks progress at the same rate. A block whose trees all cross a crowded link would finish late. In
other collectives each tree has a different root, or all have the same root, and the work of a rank differs too much
between the trees. There consecutive channels, which are mostly copies of one tree, share a block.

GPUs behind a switch have star trees. There few blocks do most of the work: in each phase the root accesses each chunk
once for every other rank, a leaf twice. If all parts of a star are in the same blocks, these blocks limit the rate. So
the pass distributes the parts over the blocks by their work, and a hop takes half as many rounds as there are slots.
The root of one part is then a leaf of the other parts in its block, and never waits for a chunk that has just been
sent. In deeper trees such lags add up and cost more than they gain.

With random orders, the links of a closed network of M blocks over S links, which each block visits in turn, are busy
for M/(M + S - 1) of the time (Gordon and Newell 1967; for fair sharing Baskett and others 1975). With 32 blocks, 2 to 4
links are busy for 97% to 91% of the time, and longer with planned orders.

Before (a chain 2 -> 1 -> 0 -> 1 -> 2 of an all_reduce, two shares, 4 slots, rank 2)::

    channel 0
      send share 0 lag 0 send 0
      recv share 0 lag 6 recv 3
    channel 1
      send share 1 lag 0 send 4
      recv share 1 lag 6 recv 7

After, with a limit of one channel::

    channel 0
      send share 0 lag 0 send 0
      recv share 1 lag 3 recv 7
      recv share 0 lag 2 recv 3
      send share 1 lag 0 send 4
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from typing import TypeVar

from collc.collectives.model import Collective
from collc.errors import IRError
from collc.ir.nodes import Channel, Program, Step
from collc.lowering.depth import hops_before
from collc.lowering.even_rounds import even_rounds

# Stars are distributed only if the work of the busiest block is then below this ratio of its work with consecutive
# channels together.
_MAX_WORK_RATIO = Fraction(9, 10)
# Among at most this many ranks, a rank that exchanges chunks with all but one other rank may be part of a chain.
_MAX_CHAIN_RANKS = 4
_Item = TypeVar("_Item")


def take_turns(program: Program, *, limit: int) -> Program:
    """Returns the program with at most `limit` channels, in orders of steps that mostly differ.

    Stars are distributed by their work if this reduces the work of the busiest block clearly. The channels of other
    all_reduces are distributed round-robin. Otherwise consecutive channels stay together, so a heavy tree gets whole
    blocks. A program with at most `limit` channels stays as it is.

    Raises:
        IRError: the program has one slot per FIFO, so no hops can overlap.
    """
    assert limit >= 1
    if program.slots < 2:
        raise IRError("turns need hops that overlap", hint="run pipeline_hops first")
    if len(program.channels) <= limit:
        return program
    star_groups = _star_groups(program, limit)
    if star_groups:
        return program.replace(channels=tuple(_round_of_stars(program, stars) for stars in star_groups))
    groups = _consecutive(program.channels, limit)
    if program.collective is Collective.ALL_REDUCE:
        groups = [program.channels[c::limit] for c in range(limit)]
    return program.replace(channels=tuple(even_rounds(program, groups)))


def _consecutive(items: Sequence[_Item], limit: int) -> list[Sequence[_Item]]:
    """Returns `limit` groups of consecutive items, whose sizes differ by at most one."""
    return [items[c * len(items) // limit : (c + 1) * len(items) // limit] for c in range(limit)]


@dataclass(frozen=True)
class _Star:
    """A channel with one rank, the hub, that exchanges chunks with the other ranks.

    Attributes:
        copy: the number of stars with the same hub before this one.
        work: the data that each rank reads and writes for this channel, as a multiple of a block of data.
    """

    channel: Channel
    hub: int
    copy: int
    work: tuple[Fraction, ...]


def _star_groups(program: Program, limit: int) -> list[list[_Star]]:
    """Returns the stars of each block; no groups if some channel is no star or consecutive channels are almost as good.

    The stars are sorted by copy and hub. Each batch of `limit` stars adds one star to each block in this order. The
    first block of a batch is chosen so that the busiest block gets the least work. Behind a switch, the blocks then
    differ only by a rotation of the ranks.
    """
    stars = _stars(program)
    if not stars:
        return []
    queue = sorted(stars, key=lambda star: (star.copy, star.hub))
    blocks: list[list[_Star]] = [[] for _ in range(limit)]
    for first in range(0, len(stars), limit):
        batch = queue[first : first + limit]
        blocks = min((_add_stars(blocks, batch, shift) for shift in range(program.nranks)), key=_max_work)
    return blocks if _max_work(blocks) < _MAX_WORK_RATIO * _max_work(_consecutive(stars, limit)) else []


def _add_stars(blocks: Sequence[list[_Star]], batch: Sequence[_Star], shift: int) -> list[list[_Star]]:
    """Returns the blocks with one more star each, from block `shift` on."""
    result = [list(block) for block in blocks]
    for i, star in enumerate(batch):
        result[(i + shift) % len(result)].append(star)
    return result


def _stars(program: Program) -> list[_Star]:
    """Returns the channels as stars; an empty list if some channel is no star."""
    stars: list[_Star] = []
    copies: Counter[int] = Counter()
    for channel in program.channels:
        fans = [max((max(len(s.send), len(s.recv)) for s in steps), default=0) for steps in channel.steps]
        hub = fans.index(max(fans))
        # The hub of a broadcast from another root receives from the root and sends to all other ranks.
        min_fan = program.nranks - (2 if program.nranks > _MAX_CHAIN_RANKS else 1)
        if fans[hub] < min_fan:
            return []
        work = tuple(_star_work(program, steps) for steps in channel.steps)
        stars.append(_Star(channel, hub, copies[hub], work))
        copies[hub] += 1
    return stars


def _star_work(program: Program, steps: Sequence[Step]) -> Fraction:
    """Returns the data that some steps read and write, as a multiple of a block of data."""
    sizes = ((step, program.shares[step.share]) for step in steps)
    return sum((program.touches(step) * (share.hi - share.lo) for step, share in sizes), Fraction(0))


def _max_work(blocks: Sequence[Sequence[_Star]]) -> Fraction:
    """Returns the work of the busiest block of any rank."""
    per_rank = (zip(*(star.work for star in block), strict=True) for block in blocks if block)
    return max(sum(work, Fraction(0)) for block in per_rank for work in block)


def _round_of_stars(program: Program, stars: Sequence[_Star]) -> Channel:
    """Returns one channel with the steps of all stars of a block.

    Each hop takes `slots // 2` rounds, but at least 1. This is less than `slots`, so all waits are for earlier rounds.
    The order within a round is random. It is the same for blocks that differ only by a rotation of the ranks.
    """
    lag = max(1, program.slots // 2)
    ranks: list[list[tuple[float, Step]]] = [[] for _ in range(program.nranks)]
    for number, star in enumerate(stars):
        hops_to = hops_before(program, star.channel)
        for rank, steps in enumerate(star.channel.steps):
            offset = (rank - stars[0].hub) % program.nranks
            rng = random.Random(f"{stars[0].copy} {number} {offset}")
            ranks[rank] += [(rng.random(), dataclasses.replace(s, lag=lag * hops_to(rank, s))) for s in steps]
    return Channel(tuple(tuple(step for _, step in sorted(steps, key=itemgetter(0))) for steps in ranks))
