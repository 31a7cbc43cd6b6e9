"""The programs that a library offers for one collective and root, read from its manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collc.collectives.model import Collective
from collc.collectives.sizes import short_size
from collc.errors import RunError
from collc.packing.model import IN_SWITCH
from collc.topology.model import JOINT

# Of a variant: plan, protocol, chunk, spread; and of a program that is cut into classes its size in the table, else -1.
# What is cut has all shares of its trees as its spread, and these differ from root to root: there it is left out.
Key = tuple[str, str, int, int, int]
Family = tuple[str, str, int, int]


@dataclass(frozen=True)
class Candidate:
    """One program. `number` counts within its allocation; `min_bytes` is that of the embedded table, None: never."""

    number: int
    collective: Collective
    root: int | None
    plan: str
    protocol: str
    chunk_bytes: int
    channels: int
    spread: int
    min_bytes: int | None
    weights: tuple[int, ...] = ()  # of the classes that it is cut into, in the order of JOINT

    @property
    def cut(self) -> int:
        """The size from which the embedded table selects a program that is cut into classes; -1: it is not cut."""
        return (self.min_bytes or 0) if self.weights else -1

    @property
    def key(self) -> Key:
        """What distinguishes it from other candidates of its root, and is the same for all roots."""
        return (self.plan, self.protocol, self.chunk_bytes, 0 if self.weights else self.spread, self.cut)

    @property
    def family(self) -> Family:
        """What it shares with candidates that differ only in chunk size."""
        return (self.plan, self.protocol, 0 if self.weights else self.spread, self.cut)

    def label(self) -> str:
        """Plan, protocol, bytes per chunk, channels, as people read them."""
        return f"{self.plan}/{self.protocol}/{short_size(self.chunk_bytes)}x{self.channels}"


@dataclass(frozen=True)
class Offer:
    """The programs of one allocation."""

    allocation: int
    first_program: int
    nranks: int
    candidates: tuple[Candidate, ...]

    def of(self, collective: Collective, root: int | None) -> list[Candidate]:
        """The candidates of a collective and a root of the plan."""
        return [c for c in self.candidates if (c.collective, c.root) == (collective, root)]

    def roots(self, collective: Collective) -> list[int | None]:
        """Plan ranks; [None] for a collective without roots."""
        return list(dict.fromkeys(c.root for c in self.candidates if c.collective is collective))


def read_offers(manifest: dict[str, Any]) -> list[Offer]:
    """Every allocation of a library, without programs inside a switch: a table of a tuning file is for every machine.

    Raises:
        RunError: the manifest is of a version that could not be tuned.
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
    """The program that the embedded table selects for `size` bytes of NCCL's count."""
    held = [c for c in candidates if c.min_bytes is not None and c.min_bytes <= size]
    assert held, "a library has a program for every size"
    return max(held, key=lambda c: c.min_bytes or 0)


def families(candidates: Sequence[Candidate], size: int) -> list[list[Candidate]]:
    """Candidates by plan, protocol and spread, with ascending chunk sizes; of those that contain a whole call, one."""
    found: dict[Family, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda c: (c.chunk_bytes, c.number)):
        members = found.setdefault(candidate.family, [])
        if not members or (members[-1].chunk_bytes < size and members[-1].chunk_bytes != candidate.chunk_bytes):
            members.append(candidate)
    order = {c.family: i for i, c in reversed(list(enumerate(candidates)))}
    return [found[family] for family in sorted(found, key=lambda family: order[family])]
