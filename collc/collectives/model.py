"""The definition of each collective: a row of `TRAITS` has all that planner, compiler, runtime and benchmarks need.

Names and counts are NCCL's and nccl-tests'. Two headers under `templates/include/collc/` are rendered from this table
(`collc.collectives.header`), so the runtime reads the same rows.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Holds(enum.Enum):
    """Which blocks a buffer holds, in order. Blocks are numbered by rank unless said otherwise."""

    WHOLE = "the only block"
    OWN = "the rank's own block"
    EVERY = "the blocks of all ranks"
    BEFORE = "the block of the rank before this one"
    TO_EACH = "one block for each rank: block source * nranks + destination"
    FROM_EACH = "one block from each rank, numbered as in TO_EACH"


@dataclass(frozen=True, slots=True)
class Buffer:
    """The contents of a rank's input or output; `at_root`: only the root has one."""

    holds: Holds
    at_root: bool = False

    @property
    def per_rank(self) -> bool:
        """Whether it has `count` elements for every rank, not `count` in all."""
        return self.holds in (Holds.EVERY, Holds.TO_EACH, Holds.FROM_EACH)


@dataclass(frozen=True, slots=True)
class Traits:
    """One collective.

    Args:
        number: of `collc::Collective`, in step tables; never changes.
        title: `k` and this is its name in C++, `nccl` and this NCCL's function (AlltoAll: with a small t).
        input, output: what a rank's buffers hold.
        mirror: the collective that this one is on the graph whose links are turned round.
        bus_rounds: busbw / algbw is this times (n-1)/n; 0: it is 1 (nccl-tests, doc/PERFORMANCE.md).
        uses_trees: packed as spanning trees, with programs of its own; else as flows between pairs.
        reduces: partial results travel up the trees and are combined.
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
    """The collectives, by nccl-tests' names; `TRAITS` defines each of them."""

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
        """The row of this collective."""
        return TRAITS[self]

    @property
    def rooted(self) -> bool:
        """Whether the caller names a root."""
        return TRAITS[self].rooted

    @property
    def uses_trees(self) -> bool:
        """True for collectives packed as spanning trees, False for those packed as flows."""
        return TRAITS[self].uses_trees

    @property
    def reduces(self) -> bool:
        """Whether partial results travel up trees (and an operation combines them)."""
        return TRAITS[self].reduces

    @property
    def spreads(self) -> bool:
        """Whether finished blocks travel down trees."""
        return TRAITS[self].spreads

    @property
    def both_phases(self) -> bool:
        """Whether its trees reduce to their root and then spread from it."""
        return self.reduces and self.spreads

    @property
    def inward(self) -> bool:
        """Whether data moves towards roots alone: the mirror of a collective that moves away from them."""
        row = TRAITS[self]
        return (row.reduces and not row.spreads) if row.uses_trees else (row.rooted and row.output.at_root)

    @property
    def per_rank(self) -> bool:
        """Whether NCCL's count is per rank: the larger buffer holds a block of `count` elements for every rank.

        A tree of such a collective carries the block of its root.
        """
        return TRAITS[self].input.per_rank or TRAITS[self].output.per_rank

    @property
    def mirror(self) -> Collective:
        """The collective that this one is on the graph whose links are turned round."""
        return Collective(TRAITS[self].mirror)

    def with_root(self, root: int | None) -> str:
        """``broadcast from rank 0``, ``reduce to rank 0``, or the name alone where there is no root."""
        return self.value if root is None else f"{self.value} {'to' if self.inward else 'from'} rank {root}"

    def bus_factor(self, nranks: int) -> float:
        """busbw / algbw, as in nccl-tests' doc/PERFORMANCE.md."""
        rounds = TRAITS[self].bus_rounds
        return rounds * (nranks - 1) / nranks if rounds else 1.0


_WHOLE, _OWN, _EVERY = Buffer(Holds.WHOLE), Buffer(Holds.OWN), Buffer(Holds.EVERY)
_ROOTS_WHOLE, _ROOTS_EVERY = Buffer(Holds.WHOLE, at_root=True), Buffer(Holds.EVERY, at_root=True)
_BEFORE, _TO_EACH, _FROM_EACH = Buffer(Holds.BEFORE), Buffer(Holds.TO_EACH), Buffer(Holds.FROM_EACH)

# In the order in which a library lists its programs.
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
    Collective.ALL_GATHER: Traits(1, "AllGather", _OWN, _EVERY, "reduce_scatter", 1, uses_trees=True, spreads=True),
    Collective.REDUCE_SCATTER: Traits(2, "ReduceScatter", _EVERY, _OWN, "all_gather", 1, uses_trees=True, reduces=True),
    Collective.GATHER: Traits(5, "Gather", _OWN, _ROOTS_EVERY, "scatter", 1, rooted=True),
    Collective.SCATTER: Traits(6, "Scatter", _ROOTS_EVERY, _OWN, "gather", 1, rooted=True),
    Collective.ALLTOALL: Traits(7, "AllToAll", _TO_EACH, _FROM_EACH, "alltoall", 1),
    Collective.SENDRECV: Traits(8, "SendRecv", _OWN, _BEFORE, "sendrecv", 0),
}
# Those that programs exist for, in that order.
COMPILED = tuple(collective for collective in TRAITS if collective.uses_trees)
