"""The claims of the sources, item by item, and the judgment of our answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "sources"
# The order of the pages.
SOURCES = ("blink", "nccl-protocols", "baidu-ring", "ring-by-hand", "flexlink")
# The rounding of a source's figure with two or three digits.
ROUNDING = 0.02
# Up to here a simulated figure counts as reproduced.
CLOSE = 0.15
REPRODUCED, SIMULATED, OFF, IMPOSSIBLE = "reproduced", "simulated within 15%", "off by more", "impossible here"
VERDICTS = (REPRODUCED, SIMULATED, OFF, IMPOSSIBLE)
WAYS = ("proved", "counted", "simulated", "measured")


@dataclass(frozen=True)
class Claim:
    """One statement of a source.

    Args:
        id: unique in its source.
        says: the statement in our words.
        theirs: the number or the range that it names; None: it holds or it does not.
        unit: of that number.
        bound: "" for an equality, "at least" or "at most".
        impossible: why nothing here can confirm or refute it.
        reason: the reason that is given where our figure differs by more than the tolerance.
    """

    id: str
    says: str
    theirs: float | tuple[float, float] | None = None
    unit: str = ""
    bound: str = ""
    impossible: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Item:
    """A figure, a table or a heading of a source. `plot` is the name of the drawing that stands for a picture there,
    and `reason` is why claims without a reason of their own are off."""

    at: str
    title: str
    claims: tuple[Claim, ...]
    plot: str = ""
    note: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Source:
    """One document: `file` is what its text is called among the project's sources."""

    name: str
    title: str
    citation: str
    file: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Answer:
    """Our figure for a claim.

    Args:
        value: a number in the claim's unit, or whether the statement holds.
        way: one of WAYS.
        how: the model or count behind the value: generation, error class, command.
        shown: what the table prints in place of the number.
    """

    value: float | bool
    way: str
    how: str
    shown: str = ""


@dataclass(frozen=True)
class Made:
    """The result of an item's generator: answers by claim, and tables in Markdown."""

    answers: Mapping[str, Answer]
    text: str = ""


@dataclass(frozen=True)
class Row:
    """A claim beside our answer."""

    claim: Claim
    answer: Answer | None
    item_reason: str = ""

    @cached_property
    def difference(self) -> float | None:
        """Ours over theirs less one, 0 inside a range or beyond a bound; None where nothing is compared."""
        theirs, answer = self.claim.theirs, self.answer
        if answer is None or theirs is None:
            return None
        low, high = theirs if isinstance(theirs, tuple) else (theirs, theirs)
        value = float(answer.value)
        if (value >= low and self.claim.bound == "at least") or (value <= high and self.claim.bound == "at most"):
            return 0.0
        if low <= value <= high:
            return 0.0
        nearest = low if value < low else high
        return value / nearest - 1 if nearest else value

    @property
    def reason(self) -> str:
        """Why the claim is off, or impossible."""
        return {OFF: self.claim.reason or self.item_reason, IMPOSSIBLE: self.claim.impossible}.get(self.verdict, "")

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""
        if self.answer is None:
            return IMPOSSIBLE
        simulated = self.answer.way == "simulated"
        if self.difference is None:
            holds = bool(self.answer.value)
        else:
            holds = abs(self.difference) <= (CLOSE if simulated else ROUNDING)
        if not holds:
            return OFF
        return SIMULATED if simulated else REPRODUCED


def load(name: str) -> Source:
    """A source as its file in `sources/` lists it."""
    value = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    items = tuple(_item(entry) for entry in value.pop("items"))
    ids = [claim.id for item in items for claim in item.claims]
    assert len(set(ids)) == len(ids), f"{name}: a claim stands twice"
    return Source(name=name, items=items, **value)


def _item(entry: Mapping[str, Any]) -> Item:
    claims = tuple(_claim(claim) for claim in entry["claims"])
    assert claims, f"{entry['at']} claims nothing"
    return Item(
        entry["at"], entry["title"], claims, entry.get("plot", ""), entry.get("note", ""), entry.get("reason", "")
    )


def _claim(entry: Mapping[str, Any]) -> Claim:
    values = dict(entry)
    theirs = values.get("theirs")
    if isinstance(theirs, list):
        values["theirs"] = (float(theirs[0]), float(theirs[1]))
    return Claim(**values)


Generator = Callable[[Path], Made]


@dataclass
class Generators:
    """The functions that answer the items of one source, by the item's name."""

    source: str
    by_item: dict[str, Generator] = field(default_factory=dict)

    def __call__(self, at: str) -> Callable[[Generator], Generator]:
        """Registers a function for an item; it may draw into the folder."""

        def keep(function: Generator) -> Generator:
            assert at not in self.by_item, at
            self.by_item[at] = function
            return function

        return keep
