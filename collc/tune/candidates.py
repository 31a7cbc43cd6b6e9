"""Reads the programs of a library for each collective and root from its manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collc.collectives.model import Collective
from collc.collectives.sizes import short_size
from collc.errors import RunError
from collc.packing.model import IN_SWITCH
from collc.topology.model import JOINT

# Key: plan, protocol, chunk, spread, and the smallest message of a multi-path program in the table, else -1. The spread
# of a multi-path program counts all shares of its trees, which differ from root to root, so it is 0 here.
Key = tuple[str, str, int, int, int]
Family = tuple[str, str, int, int]


@dataclass(frozen=True)
class Candidate:
    """One program.

    Attributes:
        number: its number within its allocation.
        min_bytes: its smallest message in the embedded table; None if the table does not choose it.
        weights: the weights of path classes, in the order of JOINT; empty unless it is a multi-path program.
    """

    number: int
    collective: Collective
    root: int | None
    plan: str
    protocol: str
    chunk_bytes: int
    channels: int
    spread: int
    min_bytes: int | None
    weights: tuple[int, ...] = ()

    @property
    def cut(self) -> int:
        """The bytes of the smallest message that the embedded table gives to this multi-path program; -1 for others."""
        return (self.min_bytes or 0) if self.weights else -1

    @property
    def key(self) -> Key:
        """The properties that distinguish it from other candidates of its root. They are equal for all roots."""
        return (self.plan, self.protocol, self.chunk_bytes, 0 if self.weights else self.spread, self.cut)

    @property
    def family(self) -> Family:
        """The properties that it shares with candidates that differ only in chunk size."""
        return (self.plan, self.protocol, 0 if self.weights else self.spread, self.cut)

    def label(self) -> str:
        """Returns plan, protocol, bytes per chunk and channels as text."""
        return f"{self.plan}/{self.protocol}/{short_size(self.chunk_bytes)}x{self.channels}"


@dataclass(frozen=True)
class Offer:
    """The programs of one allocation."""

    allocation: int
    first_program: int
    nranks: int
    candidates: tuple[Candidate, ...]

    def of(self, collective: Collective, root: int | None) -> list[Candidate]:
        """Returns the candidates of a collective and a root of the plan."""
        return [c for c in self.candidates if (c.collective, c.root) == (collective, root)]

    def roots(self, collective: Collective) -> list[int | None]:
        """Returns the roots of a collective as ranks of the plan; [None] for a collective without a root."""
        return list(dict.fromkeys(c.root for c in self.candidates if c.collective is collective))


def read_offers(manifest: dict[str, Any]) -> list[Offer]:
    """Returns the programs of every allocation of a library.

    Programs inside a switch are left out, because a table of a tuning file is for every machine.

    Raises:
        RunError: the manifest is of a version without support for tuning.
    """
    offers: list[Offer] = []
    first = 0
    for number, allocation in enumerate(manifest["allocations"]):
        rows = allocation["programs"]
        try:
            candidates = tuple(
                Candidate(
                    i,
                    Collective(row["collective"]),
                    row["root"],
                    row["plan"] + ("+everywhere" if row.get("everywhere") else ""),
                    row["proto"],
                    row["chunk_bytes"],
                    row["channels"],
                    row["spread"],
                    row["min_bytes"],
                    tuple(row["weights"][name] for name in JOINT) if row.get("weights") else (),
                )
                for i, row in enumerate(rows)
                if row["plan"] != IN_SWITCH
            )
        except KeyError:
            raise RunError("the library was compiled by a version without support for tuning") from None
        offers.append(Offer(number, first, allocation["nranks"], candidates))
        first += len(rows)
    return offers


def embedded(candidates: Sequence[Candidate], size: int) -> Candidate:
    """Returns the program that the embedded table selects for `size` bytes of NCCL's count."""
    held = [c for c in candidates if c.min_bytes is not None and c.min_bytes <= size]
    assert held, "a library has a program for every size"
    return max(held, key=lambda c: c.min_bytes or 0)


def families(candidates: Sequence[Candidate], size: int) -> list[list[Candidate]]:
    """Returns candidates by plan, protocol and spread, with ascending chunk sizes.

    Only one of the candidates whose chunk contains a whole call is kept.
    """
    found: dict[Family, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda c: (c.chunk_bytes, c.number)):
        members = found.setdefault(candidate.family, [])
        if not members or (members[-1].chunk_bytes < size and members[-1].chunk_bytes != candidate.chunk_bytes):
            members.append(candidate)
    order = {c.family: i for i, c in reversed(list(enumerate(candidates)))}
    return [found[family] for family in sorted(found, key=lambda family: order[family])]
