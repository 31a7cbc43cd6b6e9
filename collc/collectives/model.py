"""The definition of each collective: a row of `TRAITS` for planner, compiler, runtime and benchmarks.

Names and counts are those that NCCL and nccl-tests use. `collc.collectives.header` renders two headers under
`templates/include/collc/` from this table, so the runtime reads the same rows.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Holds(enum.Enum):
    """The blocks of a buffer, in order. Except in `TO_EACH` and `FROM_EACH`, a block has the number of its rank."""

    WHOLE = "the only block"
    RANK = "the block of this rank"
    ALL_RANKS = "the blocks of all ranks"
    PREVIOUS_RANK = "the block of the rank before this one"
    TO_EACH = "one block for each rank: block source * nranks + destination"
    FROM_EACH = "one block from each rank, numbered as in TO_EACH"


@dataclass(frozen=True, slots=True)
class Buffer:
    """The contents of a rank's input or output.

    Attributes:
        at_root: only the root has this buffer.
    """

    holds: Holds
    at_root: bool = False

    @property
    def per_rank(self) -> bool:
        """True if the buffer has `count` elements for every rank, False if it has `count` elements in total."""
        return self.holds in (Holds.ALL_RANKS, Holds.TO_EACH, Holds.FROM_EACH)


@dataclass(frozen=True, slots=True)
class Traits:
    """One collective.

    Args:
        number: the value of the enumerator of `collc::Collective`, also in step tables. It never changes.
        title: the name in C++ without the prefix `k`, and NCCL's function without `nccl`. NCCL writes AlltoAll.
        input, output: the contents of a rank's buffers.
        mirror: the name of the collective that this one becomes if all links of the graph are reversed.
        bus_rounds: busbw / algbw is bus_rounds * (n-1)/n, or 1 if bus_rounds is 0 (nccl-tests, doc/PERFORMANCE.md).
        uses_trees: the collective is packed as spanning trees and has programs; else as flows between pairs.
        reduces: partial results travel up the trees, and an operation combines them.
        spreads: finished blocks travel down the trees.
        rooted: the caller names a root.
    """

    number: int
    title: str
    input: Buffer
    output: Buffer
    mirror: str
    bus_rounds: int
    uses_trees: bool = False
    reduces: bool = False
    spreads: bool = False
    rooted: bool = False


class Collective(enum.Enum):
    """The collectives, with their names in nccl-tests; `TRAITS` defines each of them."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALLTOALL = "alltoall"
    SENDRECV = "sendrecv"

    @property
    def traits(self) -> Traits:
        """This collective's row of `TRAITS`."""
        return TRAITS[self]

    @property
    def rooted(self) -> bool:
        """True if the caller names a root."""
        return TRAITS[self].rooted

    @property
    def uses_trees(self) -> bool:
        """True for collectives packed as spanning trees, False for those packed as flows."""
        return TRAITS[self].uses_trees

    @property
    def reduces(self) -> bool:
        """True if partial results travel up the trees and an operation combines them."""
        return TRAITS[self].reduces

    @property
    def spreads(self) -> bool:
        """True if finished blocks travel down the trees."""
        return TRAITS[self].spreads

    @property
    def both_phases(self) -> bool:
        """True if the trees of this collective reduce to their root and then broadcast from it."""
        return self.reduces and self.spreads

    @property
    def inward(self) -> bool:
        """True if all data move towards roots, so that the mirror moves all data away from them."""
        row = TRAITS[self]
        return (row.reduces and not row.spreads) if row.uses_trees else (row.rooted and row.output.at_root)

    @property
    def per_rank(self) -> bool:
        """True if NCCL's count is per rank: the larger buffer has a block of `count` elements for every rank.

        A tree of such a collective carries the block of its root.
        """
        return TRAITS[self].input.per_rank or TRAITS[self].output.per_rank

    @property
    def mirror(self) -> Collective:
        """The collective that this one becomes if all links of the graph are reversed."""
        return Collective(TRAITS[self].mirror)

    def with_root(self, root: int | None) -> str:
        """Returns ``broadcast from rank 0`` or ``reduce to rank 0``, or only the name if `root` is None."""
        return self.value if root is None else f"{self.value} {'to' if self.inward else 'from'} rank {root}"

    def bus_factor(self, nranks: int) -> float:
        """Returns busbw / algbw, as defined in doc/PERFORMANCE.md of nccl-tests."""
        rounds = TRAITS[self].bus_rounds
        return rounds * (nranks - 1) / nranks if rounds else 1.0


_WHOLE, _RANK, _ALL_RANKS = Buffer(Holds.WHOLE), Buffer(Holds.RANK), Buffer(Holds.ALL_RANKS)
_ROOTS_WHOLE, _ROOTS_ALL_RANKS = Buffer(Holds.WHOLE, at_root=True), Buffer(Holds.ALL_RANKS, at_root=True)
_PREVIOUS_RANK, _TO_EACH, _FROM_EACH = Buffer(Holds.PREVIOUS_RANK), Buffer(Holds.TO_EACH), Buffer(Holds.FROM_EACH)

# The rows are in the order of the programs of a library.
TRAITS: dict[Collective, Traits] = {
    Collective.ALL_REDUCE: Traits(
        0, "AllReduce", _WHOLE, _WHOLE, "all_reduce", 2, uses_trees=True, reduces=True, spreads=True
    ),
    Collective.BROADCAST: Traits(
        3, "Broadcast", _ROOTS_WHOLE, _WHOLE, "reduce", 0, uses_trees=True, spreads=True, rooted=True
    ),
    Collective.REDUCE: Traits(
        4, "Reduce", _WHOLE, _ROOTS_WHOLE, "broadcast", 0, uses_trees=True, reduces=True, rooted=True
    ),
    Collective.ALL_GATHER: Traits(
        1, "AllGather", _RANK, _ALL_RANKS, "reduce_scatter", 1, uses_trees=True, spreads=True
    ),
    Collective.REDUCE_SCATTER: Traits(
        2, "ReduceScatter", _ALL_RANKS, _RANK, "all_gather", 1, uses_trees=True, reduces=True
    ),
    Collective.GATHER: Traits(5, "Gather", _RANK, _ROOTS_ALL_RANKS, "scatter", 1, rooted=True),
    Collective.SCATTER: Traits(6, "Scatter", _ROOTS_ALL_RANKS, _RANK, "gather", 1, rooted=True),
    Collective.ALLTOALL: Traits(7, "AllToAll", _TO_EACH, _FROM_EACH, "alltoall", 1),
    Collective.SENDRECV: Traits(8, "SendRecv", _RANK, _PREVIOUS_RANK, "sendrecv", 0),
}
# The collectives that have programs, in the order of `TRAITS`.
COMPILED = tuple(collective for collective in TRAITS if collective.uses_trees)
