"""take_turns: shares share a thread block, and no two blocks keep step with each other.

A block does one thing at a time: while it sends a chunk up a tree, the links down that tree are idle unless another
block feeds them. Links that several blocks feed serve them equally, so blocks with the same steps in the same order end
together, start their next step together, and go on like that: all of them on the links up, then all of them on the
links down. With one tree, half of the bandwidth is lost that way, however many blocks there are.

So each block gets a few shares and an order of its own. The steps of a round are spread over a circle so that all
links have about as much to carry at any time (`collc.lowering.even_rounds`). Where a step ends up on the circle is its
place in the round, how often it has gone round is its lag. A chunk is always used later than it was made, so no order
can deadlock. The shares of an all_reduce are dealt round, so that blocks have shares of many trees and get on alike:
one whose trees all cross a crowded link ends late. Where trees have a root each, or all have one, a rank's steps of a
tree differ too much in work for that: neighbours, which are mostly copies of one tree, share a block.

Stars, which GPUs behind a switch have, are work for few blocks: the root touches each chunk once for every other rank,
a leaf twice. With all parts of a star in the same blocks, these limit the rate. There the parts are dealt over blocks
by their work instead, and a hop takes as many rounds as half of the slots: the root of one part is a leaf of the others
in its block, and never waits for a chunk that was sent a moment ago. In deeper trees such lags add up and cost more.

With random orders a closed network of M blocks over S links that each visits in turn is busy for M/(M + S - 1) of the
time (Gordon and Newell 1967; for fair sharing Baskett and others 1975): 32 blocks over 2 to 4 links, 91% to 97%; with
planned ones more.

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

# Neighbours stay together unless the busiest block then has less than this share of its work.
_BETTER = Fraction(9, 10)
# Of so many ranks, one that exchanges with all but one is a link of a chain, not the hub of a star.
_FEW = 4
_Row = TypeVar("_Row")


def take_turns(program: Program, *, limit: int) -> Program:
    """Distributes channels over `limit` channels, each with its own order; programs with fewer stay.

    Stars are dealt out by their work where that leaves clearly less to the busiest block, other trees of an
    all_reduce round; else neighbours stay together, so a heavy tree gets whole blocks.

    Raises:
        IRError: the program has one slot per FIFO, so nothing can overlap.
    """
    assert limit >= 1
    if program.slots < 2:
        raise IRError("turns need hops that overlap", hint="run pipeline_hops first")
    if len(program.channels) <= limit:
        return program
    dealt = _dealt(program, limit)
    if dealt:
        return program.replace(channels=tuple(_round_of_stars(program, stars) for stars in dealt))
    groups = _neighbours(program.channels, limit)
    if program.collective is Collective.ALL_REDUCE:
        groups = [program.channels[c::limit] for c in range(limit)]
    return program.replace(channels=tuple(even_rounds(program, groups)))


def _neighbours(rows: Sequence[_Row], limit: int) -> list[Sequence[_Row]]:
    """`limit` groups of what follows each other, of about as many."""
    return [rows[c * len(rows) // limit : (c + 1) * len(rows) // limit] for c in range(limit)]


@dataclass(frozen=True)
class _Star:
    """A channel whose `hub` exchanges chunks with all others; the `copy`-th of this hub. `work` is what each rank's
    block reads and writes for it, in blocks of data."""

    channel: Channel
    hub: int
    copy: int
    work: tuple[Fraction, ...]


def _dealt(program: Program, limit: int) -> list[list[_Star]]:
    """The stars of each block; none where trees are deeper, or where neighbours are as good.

    The stars come in rounds of `limit`, hub after hub. Each round goes over the blocks in this order, moved on by as
    many blocks as leave least work to the busiest. Behind a switch, blocks then differ by a rotation of ranks alone.
    """
    stars = _all_stars(program)
    if not stars:
        return []
    ordered = sorted(stars, key=lambda star: (star.copy, star.hub))
    blocks: list[list[_Star]] = [[] for _ in range(limit)]
    for first in range(0, len(stars), limit):
        turn = ordered[first : first + limit]
        blocks = min((_with_round(blocks, turn, moved) for moved in range(program.nranks)), key=_busiest)
    return blocks if _busiest(blocks) < _BETTER * _busiest(_neighbours(stars, limit)) else []


def _with_round(blocks: Sequence[list[_Star]], turn: Sequence[_Star], moved: int) -> list[list[_Star]]:
    found = [list(block) for block in blocks]
    for at, star in enumerate(turn):
        found[(at + moved) % len(found)].append(star)
    return found


def _all_stars(program: Program) -> list[_Star]:
    """The channels as stars; none if one of them is no star."""
    found: list[_Star] = []
    copies: Counter[int] = Counter()
    for channel in program.channels:
        fans = [max((max(len(s.send), len(s.recv)) for s in steps), default=0) for steps in channel.steps]
        hub = fans.index(max(fans))
        # In a broadcast, the root of which has sent to the hub, this one has no more business with it.
        others = program.nranks - (2 if program.nranks > _FEW else 1)
        if fans[hub] < others:
            return []
        work = tuple(_work(program, steps) for steps in channel.steps)
        found.append(_Star(channel, hub, copies[hub], work))
        copies[hub] += 1
    return found


def _work(program: Program, steps: Sequence[Step]) -> Fraction:
    sizes = ((step, program.shares[step.share]) for step in steps)
    return sum((program.touches(step) * (share.hi - share.lo) for step, share in sizes), Fraction(0))


def _busiest(blocks: Sequence[Sequence[_Star]]) -> Fraction:
    """The most work of a block of any rank."""
    each = (zip(*(star.work for star in block), strict=True) for block in blocks if block)
    return max(sum(work, Fraction(0)) for block in each for work in block)


def _round_of_stars(program: Program, stars: Sequence[_Star]) -> Channel:
    """Stars of one block, each hop later by half of the slots' rounds: fewer than slots, so all waits are for earlier
    rounds. The order within a round is random, the same for blocks that differ by a rotation of the ranks."""
    lag = max(1, program.slots // 2)
    ranks: list[list[tuple[float, Step]]] = [[] for _ in range(program.nranks)]
    for turn, star in enumerate(stars):
        before = hops_before(program, star.channel)
        for rank, steps in enumerate(star.channel.steps):
            away = (rank - stars[0].hub) % program.nranks
            rng = random.Random(f"{stars[0].copy} {turn} {away}")
            ranks[rank] += [(rng.random(), dataclasses.replace(s, lag=lag * before(rank, s))) for s in steps]
    return Channel(tuple(tuple(step for _, step in sorted(steps, key=itemgetter(0))) for steps in ranks))
