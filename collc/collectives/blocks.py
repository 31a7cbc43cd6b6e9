"""The offsets of a collective's blocks, by NCCL's buffer conventions."""

from __future__ import annotations

from dataclasses import dataclass

from collc.collectives.model import Buffer, Collective, Holds

Blocks = dict[int, int]


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The offsets of a collective's blocks. All offsets are in units of `count` elements.

    Attributes:
        nblocks: the number of blocks.
        in_blocks: block -> offset, for each rank: the blocks that the rank reads from its input.
        out_blocks: block -> offset, for each rank: the blocks that the rank must have written to its output at the end.
    """

    nblocks: int
    in_blocks: tuple[Blocks, ...]
    out_blocks: tuple[Blocks, ...]


def block_layout(collective: Collective, nranks: int, root: int | None) -> BlockLayout:
    """Returns the layout of a collective's blocks.

    `count` is NCCL's: elements per rank if `Collective.per_rank`, else elements of the whole buffer.

    Args:
        root: the root of a rooted collective, else None.
    """
    row = collective.traits
    holds = {row.input.holds, row.output.holds}
    nblocks = nranks * nranks if Holds.TO_EACH in holds else 1 if holds == {Holds.WHOLE} else nranks
    return BlockLayout(nblocks, _places(row.input, nranks, root), _places(row.output, nranks, root))


def _places(buffer: Buffer, nranks: int, root: int | None) -> tuple[Blocks, ...]:
    no_blocks: Blocks = {}
    shared = _place(buffer.holds, 0, nranks) if buffer.holds in (Holds.WHOLE, Holds.ALL_RANKS) else None
    return tuple(
        no_blocks if buffer.at_root and rank != root else shared or _place(buffer.holds, rank, nranks)
        for rank in range(nranks)
    )


def _place(holds: Holds, rank: int, nranks: int) -> Blocks:
    ranks = range(nranks)
    match holds:
        case Holds.WHOLE:
            return {0: 0}
        case Holds.RANK:
            return {rank: 0}
        case Holds.ALL_RANKS:
            return {block: block for block in ranks}
        case Holds.PREVIOUS_RANK:
            return {(rank - 1) % nranks: 0}
        case Holds.TO_EACH:
            return {rank * nranks + to: to for to in ranks}
        case Holds.FROM_EACH:
            return {source * nranks + rank: source for source in ranks}


def contributors(collective: Collective, nranks: int) -> frozenset[int] | None:
    """Returns the ranks whose inputs a finished block combines; None if the collective only moves blocks."""
    return frozenset(range(nranks)) if collective.reduces else None


def buffer_counts(collective: Collective, nranks: int) -> tuple[int, int]:
    """Returns the sizes of a rank's input and output, as multiples of `count`, for ranks that have them."""
    row = collective.traits
    return (nranks if row.input.per_rank else 1, nranks if row.output.per_rank else 1)


def in_place_offsets(collective: Collective, rank: int) -> tuple[int, int]:
    """Returns the offsets of input and output in the one buffer of an in-place call, in units of `count` elements.

    The smaller of the two is at the rank's block in the larger one (NCCL, "In-place Operations").
    """
    row = collective.traits
    is_block_in = row.output.holds is Holds.ALL_RANKS and row.input.holds is Holds.RANK
    is_block_out = row.input.holds is Holds.ALL_RANKS and row.output.holds is Holds.RANK
    return (rank if is_block_in else 0, rank if is_block_out else 0)
