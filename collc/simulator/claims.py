"""The comparisons of the model with measurements, and their errors: every figure of the model carries them.

`judged.json` is written by `make validate` from the published tables: per table its machine, generation, servers,
collective, network, and per class of sizes the ratios of predicted to measured time. Sizes that parameters were fitted
to count only where nothing else was compared, and are called so.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from collc.collectives.model import Collective
from collc.simulator.nccl.shape import servers_of
from collc.topology.canonical import fingerprint
from collc.topology.model import PlanGraph

JUDGED = Path(__file__).with_name("judged.json")
# Below it calls pay for latency, from it on for bytes.
LARGE_BYTES = 1 << 20
CLASSES = ("below 1 MiB", "from 1 MiB")


def size_class(size: int) -> str:
    """The class of sizes that a call belongs to."""
    return CLASSES[size >= LARGE_BYTES]


@dataclass(frozen=True)
class Compared:
    """One table of measurements: `rows` are bytes, measured and predicted microseconds, and whether parameters were
    fitted to the size."""

    table: str
    machine: str
    generation: str
    servers: int
    fabric: str | None
    collective: str
    rows: Sequence[tuple[int, float, float, int]]

    def ratios(self, which: str, *, fitted: bool) -> list[float]:
        """Predicted over measured times of a class of sizes."""
        return [t / m for size, m, t, fit in self.rows if size_class(size) == which and bool(fit) == fitted]


@dataclass(frozen=True)
class Claim:
    """How far a figure can be trusted.

    Args:
        compared: whether NCCL's own times on this machine, generation, server count, network, collective and class of
            sizes were compared with the model's.
        known: of those, which were compared at all, each by itself.
        ratios: predicted over measured, where compared.
        ours: the figure is for collc's own program, which was never measured on such a machine.
    """

    size_class: str
    compared: bool
    known: Mapping[str, bool]
    tables: tuple[str, ...] = ()
    fitted: bool = False
    ratios: tuple[float, ...] = field(default=(), repr=False)
    ours: bool = False

    @property
    def median_error(self) -> float | None:
        """Median of |predicted / measured - 1|."""
        return statistics.median(abs(r - 1) for r in self.ratios) if self.ratios else None

    def range_us(self, time_us: float) -> tuple[float, float] | None:
        """The times between which four of five measurements would lie, by the errors found; None: never compared."""
        if not self.ratios or self.ours:
            return None
        ordered = sorted(self.ratios)
        low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
        return min(time_us, time_us / high), max(time_us, time_us / low)

    def to_json(self, time_us: float) -> dict[str, Any]:
        """The claim as JSON values."""
        found = self.range_us(time_us)
        return {
            "compared": self.compared and not self.ours,
            "size_class": self.size_class,
            "known": dict(self.known),
            "tables": list(self.tables),
            "fitted": self.fitted,
            "sizes": len(self.ratios),
            "median_error": self.median_error,
            "range_us": None if found is None else list(found),
            "text": self.text,
        }

    @property
    def text(self) -> str:
        """One line for people."""
        if not self.compared:
            lacks = ", ".join(name for name, seen in self.known.items() if not seen) or "this combination"
            text = f"never compared with a measurement ({lacks})"
        else:
            how = "fitted to" if self.fitted else "compared at"
            text = f"{how} {len(self.ratios)} sizes of {', '.join(self.tables)}, median error {self.median_error:.0%}"
        return f"never measured; NCCL in the same model: {text}" if self.ours else text


@cache
def compared(path: Path = JUDGED) -> tuple[Compared, ...]:
    """All tables that the model was compared with."""
    names = [f.name for f in fields(Compared)]
    entries = json.loads(path.read_text(encoding="utf-8"))["tables"]
    return tuple(Compared(**{name: entry[name] for name in names}) for entry in entries)


class Claims:
    """The claims for one graph, for one collective and one set of parameters.

    Args:
        changed: parameters were replaced (`--params`, `--copy-engine`): nothing was compared with these.
    """

    def __init__(
        self, graph: PlanGraph, collective: Collective, generation: str, fabric: str | None, changed: bool = False
    ) -> None:
        servers = servers_of(graph)
        self._wanted: dict[str, object] = {
            "machine": machine_key(graph),
            "generation": generation,
            "servers": servers,
            "collective": collective.value,
            **({"fabric": fabric} if servers > 1 else {}),
        }
        self._changed = changed

    def claim(self, size: int, *, ours: bool = False) -> Claim:
        """The claim for a call of `size` bytes; `ours`: of a program of collc's."""
        which = size_class(size)
        tables = [entry for entry in compared() if any(size_class(row[0]) == which for row in entry.rows)]
        known = {
            name: not self._changed and any(getattr(entry, name) == value for entry in tables)
            for name, value in self._wanted.items()
        }
        same = [t for t in tables if all(getattr(t, name) == value for name, value in self._wanted.items())]
        if self._changed or not same:
            return Claim(which, False, {**known, "parameters": not self._changed}, ours=ours)
        fitted = not any(entry.ratios(which, fitted=False) for entry in same)
        taken = [(entry.table, entry.ratios(which, fitted=fitted)) for entry in same]
        ratios = tuple(ratio for _, found in taken for ratio in found)
        return Claim(which, True, known, tuple(name for name, found in taken if found), fitted, ratios, ours)


def machine_key(graph: PlanGraph) -> str:
    """A key that is equal for machines with the same graph, whatever the names of its vertices."""
    return fingerprint(graph)
