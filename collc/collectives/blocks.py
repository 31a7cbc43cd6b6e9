"""The offsets of a collective's blocks, by NCCL's buffer conventions."""

from __future__ import annotations

from dataclasses import dataclass

from collc.collectives.model import Buffer, Collective, Holds

Blocks = dict[int, int]


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The offsets of a collective's blocks. All offsets are in units of `count` elements.

    nblocks: number of blocks; in_blocks[r], out_blocks[r]: block -> offset for the blocks that rank r reads from its
    input or must have written to its output at the end.
    """

    nblocks: int
    in_blocks: tuple[Blocks, ...]
    out_blocks: tuple[Blocks, ...]


def block_layout(collective: Collective, nranks: int, root: int | None) -> BlockLayout:
    """The blocks of a collective (`count` as in NCCL: per rank for `Collective.per_rank`, the whole buffer otherwise).

    Args:
        root: of a rooted collective, else None.
    """
    row = collective.traits
    holds = {row.input.holds, row.output.holds}
    nblocks = nranks * nranks if Holds.TO_EACH in holds else 1 if holds == {Holds.WHOLE} else nranks
    return BlockLayout(nblocks, _places(row.input, nranks, root), _places(row.output, nranks, root))


def _places(buffer: Buffer, nranks: int, root: int | None) -> tuple[Blocks, ...]:
    nothing: Blocks = {}
    shared = _place(buffer.holds, 0, nranks) if buffer.holds in (Holds.WHOLE, Holds.EVERY) else None
    return tuple(
        nothing if buffer.at_root and rank != root else shared or _place(buffer.holds, rank, nranks)
        for rank in range(nranks)
    )


def _place(holds: Holds, rank: int, nranks: int) -> Blocks:
    ranks = range(nranks)
    match holds:
        case Holds.WHOLE:
            return {0: 0}
        case Holds.OWN:
            return {rank: 0}
        case Holds.EVERY:
            return {block: block for block in ranks}
        case Holds.BEFORE:
            return {(rank - 1) % nranks: 0}
        case Holds.TO_EACH:
            return {rank * nranks + to: to for to in ranks}
        case Holds.FROM_EACH:
            return {source * nranks + rank: source for source in ranks}


def contributors(collective: Collective, nranks: int) -> frozenset[int] | None:
    """The ranks whose inputs a finished block is reduced from, or None where blocks are only moved."""
    return frozenset(range(nranks)) if collective.reduces else None


def buffer_counts(collective: Collective, nranks: int) -> tuple[int, int]:
    """The sizes of a rank's input and output, as multiples of `count`, where it has them."""
    row = collective.traits
    return (nranks if row.input.per_rank else 1, nranks if row.output.per_rank else 1)


def in_place_offsets(collective: Collective, rank: int) -> tuple[int, int]:
    """Offsets of an in-place call's input and output in one buffer, in units of `count` elements: the smaller of the
    two at its rank's block in the larger (NCCL, "In-place Operations")."""
    row = collective.traits
    own_in = row.output.holds is Holds.EVERY and row.input.holds is Holds.OWN
    own_out = row.input.holds is Holds.EVERY and row.output.holds is Holds.OWN
    return (rank if own_in else 0, rank if own_out else 0)
