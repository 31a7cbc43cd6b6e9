"""Schedules: the tree of each part of each block. A schedule has no chunks and no FIFOs yet."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from collc.collectives.model import Collective

# The largest common denominator of the boundaries of all parts of a block.
MAX_DENOMINATOR = 1 << 30


@dataclass(frozen=True, slots=True)
class Part:
    """The part [lo, hi) of a block and the tree that serves it.

    Attributes:
        lo, hi: the boundaries, as fractions of the block.
        root: the rank where the edges of `reduce` end and the edges of `broadcast` begin.
        reduce: edges (child, parent). A parent reduces its children in this order.
        broadcast: edges (parent, child).
        routes: the link ids of each edge, first for `reduce`, then for `broadcast`; empty without a graph.
        in_switch: a switch adds up, copies, or both. Then every rank, including `root`, has an edge to `root` in
            `reduce` if the collective reduces, and an edge from `root` in `broadcast` if it broadcasts.
    """

    block: int
    lo: Fraction
    hi: Fraction
    root: int
    reduce: tuple[tuple[int, int], ...] = ()
    broadcast: tuple[tuple[int, int], ...] = ()
    routes: tuple[tuple[int, ...], ...] = ()
    in_switch: bool = False


@dataclass(frozen=True)
class Schedule:
    """The schedule of one collective. Its parts cover every block exactly once."""

    collective: Collective
    root: int | None
    nranks: int
    parts: tuple[Part, ...]
