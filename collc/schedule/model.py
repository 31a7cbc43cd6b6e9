"""Schedules: which part of which block moves along which tree. No hardware, no chunks, no FIFOs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from collc.collectives.model import Collective

# Every boundary of a part is a multiple of 1/d for one d up to this, per block.
MAX_DENOMINATOR = 1 << 30


@dataclass(frozen=True, slots=True)
class Part:
    """The part [lo, hi) of a block and the tree that serves it.

    `reduce` edges are (child, parent), children in the order in which the parent reduces them; `broadcast` edges are
    (parent, child). Both meet in `root`. `routes` are the links of each edge, first of `reduce`, then of `broadcast`;
    empty where no graph is known.

    With `in_switch` the switch adds up and copies: every rank, `root` too, has an edge to `root` in `reduce` and one
    from it in `broadcast`, so far as the collective has these phases.
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
    """One collective: parts that cover every block exactly once."""

    collective: Collective
    root: int | None
    nranks: int
    parts: tuple[Part, ...]
