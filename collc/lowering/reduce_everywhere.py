"""reduce_everywhere: every rank reduces all inputs itself, one hop instead of two.

For small all_reduces, where a hop costs more than the arithmetic: the ranks hand each other their inputs, whole, and
each reduces them in the order of the ranks, its own among them, so that all get the same bits. Every rank sends as much
as it has to each of the others.

Before (one hop up to the root of each share and one down, 2 ranks, rank 0)::

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
    """Replaces an all_reduce in which every rank hands something to every other directly.

    Args:
        channels: loops side by side with an equal share each, and in each a FIFO between any two ranks; 0: one loop,
            and one FIFO of each rank that all others read.

    Raises:
        IRError: it is another collective, spans servers, or some ranks are not joined.
    """
    if program.collective is not Collective.ALL_REDUCE:
        raise IRError(f"{program.collective.value} is no all_reduce")
    if program.servers:
        raise IRError("the inputs of several servers are not in one memory")
    ranks = range(program.nranks)
    joined = {(fifo.src, dst) for fifo in program.fifos for dst in fifo.dsts}
    apart = [(a, b) for a in ranks for b in ranks if a != b and (a, b) not in joined]
    if apart:
        raise IRError(f"rank {apart[0][0]} hands nothing to rank {apart[0][1]} directly")
    if channels:
        return _side_by_side(program, channels)
    fifos = tuple(_to_all(program, r) for r in ranks)
    steps = tuple((_send(0, (r,)), _reduce(0, tuple(f for f in ranks if f != r), r)) for r in ranks)
    return program.replace(shares=(Share(0, Fraction(0), Fraction(1)),), fifos=fifos, channels=(Channel(steps),))


def _side_by_side(program: Program, channels: int) -> Program:
    """Of a share each: every rank sends to the one behind it first, so that not all begin with the same one."""
    n = program.nranks
    routes: dict[tuple[int, int], tuple[tuple[tuple[int, ...], ...], LinkKind | None]] = {}
    for fifo in program.fifos:
        for at, dst in enumerate(fifo.dsts):
            routes.setdefault((fifo.src, dst), (fifo.routes[at : at + 1], fifo.link))
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
    return Step(share, 0, True, (), False, fifos)


def _reduce(share: int, fifos: tuple[int, ...], rank: int) -> Step:
    return Step(share, 0, True, fifos, True, (), input_at=rank)


def _to_all(program: Program, rank: int) -> Fifo:
    """One FIFO from a rank to all others, over the routes that the program has there."""
    routes: dict[int, tuple[int, ...]] = {}
    kinds = set()
    for fifo in program.fifos:
        if fifo.src == rank and fifo.routes:
            routes.update(zip(fifo.dsts, fifo.routes, strict=True))
            kinds.add(fifo.link)
    others = tuple(r for r in range(program.nranks) if r != rank)
    link = slower(kinds)
    return Fifo(rank, others, 0, 0, tuple(routes[r] for r in others) if link else (), link)
