"""reduce_everywhere: every rank reduces all inputs, with one hop instead of two.

The pass is for small all_reduces: there a hop costs more than the arithmetic. Each rank sends its whole input to
every other rank. Each rank reduces all inputs, including its input, in the order of the ranks, so all ranks get the
same bits.

Before (one hop up to the root of each share and one down, 2 ranks, 3 slots, rank 0)::

    recvReduceCopySend share 0 lag 1 recv 0 send 1
    send share 1 lag 0 send 2
    recv share 1 lag 3 recv 3

After (rank 0, then rank 1)::

    send share 0 lag 0 send 0
    recvReduceCopy share 0 lag 0 recv 1
    ...
    send share 0 lag 0 send 1
    recvReduceCopy share 0 lag 0 recv 0 input-after 1
"""

from __future__ import annotations

from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import IRError
from collc.ir.nodes import Channel, Fifo, Program, Share, Step
from collc.ir.routes import slower
from collc.topology.model import LinkKind


def reduce_everywhere(program: Program, channels: int = 0) -> Program:
    """Returns an all_reduce that reduces all inputs on every rank.

    Args:
        program: an all_reduce with a FIFO from every rank to every other rank. The result uses their routes.
        channels: the number of channels. Each has an equal share, and a FIFO from every rank to every other rank. 0:
            one channel; each rank has one FIFO that all other ranks read.

    Raises:
        IRError: the program is no all_reduce, spans servers, or has no FIFO from some rank to another.
    """
    if program.collective is not Collective.ALL_REDUCE:
        raise IRError(f"{program.collective.value} is no all_reduce")
    if program.servers:
        raise IRError("the inputs of several servers are not in one memory")
    ranks = range(program.nranks)
    hops = {(fifo.src, dst) for fifo in program.fifos for dst in fifo.dsts}
    gaps = [(a, b) for a in ranks for b in ranks if a != b and (a, b) not in hops]
    if gaps:
        raise IRError(f"rank {gaps[0][0]} hands nothing to rank {gaps[0][1]} directly")
    if channels:
        return _with_channels(program, channels)
    fifos = tuple(_to_all(program, r) for r in ranks)
    steps = tuple((_send(0, (r,)), _reduce(0, tuple(f for f in ranks if f != r), r)) for r in ranks)
    return program.replace(shares=(Share(0, Fraction(0), Fraction(1)),), fifos=fifos, channels=(Channel(steps),))


def _with_channels(program: Program, channels: int) -> Program:
    """Returns the program with one share per channel.

    Rank r sends to rank r + 1 first (the last rank to rank 0), so that the ranks begin with different receivers.
    """
    n = program.nranks
    routes: dict[tuple[int, int], tuple[tuple[tuple[int, ...], ...], LinkKind | None]] = {}
    for fifo in program.fifos:
        for i, dst in enumerate(fifo.dsts):
            routes.setdefault((fifo.src, dst), (fifo.routes[i : i + 1], fifo.link))
    shares: list[Share] = []
    fifos: list[Fifo] = []
    loops: list[Channel] = []
    for c in range(channels):
        shares.append(Share(0, Fraction(c, channels), Fraction(c + 1, channels)))
        numbers = {}
        for src in range(n):
            for dst in (*range(src + 1, n), *range(src)):
                numbers[src, dst] = len(fifos)
                fifos.append(Fifo(src, (dst,), c, c, *routes[src, dst]))
        loops.append(
            Channel(
                tuple(
                    (
                        _send(c, tuple(numbers[r, dst] for dst in (*range(r + 1, n), *range(r)))),
                        _reduce(c, tuple(numbers[src, r] for src in range(n) if src != r), r),
                    )
                    for r in range(n)
                )
            )
        )
    return program.replace(shares=tuple(shares), fifos=tuple(fifos), channels=tuple(loops))


def _send(share: int, fifos: tuple[int, ...]) -> Step:
    """Returns the step that sends the input to some FIFOs."""
    return Step(share, 0, True, (), False, fifos)


def _reduce(share: int, fifos: tuple[int, ...], rank: int) -> Step:
    """Returns the step that reduces the chunks of lower ranks, the rank's input and the chunks of higher ranks."""
    return Step(share, 0, True, fifos, True, (), input_at=rank)


def _to_all(program: Program, rank: int) -> Fifo:
    """Returns one FIFO from a rank to all others, over routes of the program, or without routes if it has none."""
    routes: dict[int, tuple[int, ...]] = {}
    kinds = set()
    for fifo in program.fifos:
        if fifo.src == rank and fifo.routes:
            routes.update(zip(fifo.dsts, fifo.routes, strict=True))
            kinds.add(fifo.link)
    others = tuple(r for r in range(program.nranks) if r != rank)
    link = slower(kinds)
    return Fifo(rank, others, 0, 0, tuple(routes[r] for r in others) if link else (), link)
