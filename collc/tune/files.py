"""Writes the files of a tuning run: the tuning file for COLLC_TUNING, and the state of an interrupted run."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collc.errors import CollcError, RunError
from collc.inputs import read_input
from collc.ir.printer import print_weights
from collc.outputs import written_aside
from collc.tune.candidates import Candidate
from collc.tune.search import Point, Row

FORMAT = "collc-tuning/1"
STATE_FORMAT = "collc-tuning-state/1"
_MOST_STATE = 64 << 20


@dataclasses.dataclass(frozen=True)
class FileTable:
    """The rows of one collective and root (a rank of the plan) of an allocation, and the programs that they name."""

    allocation: int
    candidates: Sequence[Candidate]
    rows: Sequence[Row]


def tuning_text(build_id: str, machine: str, tables: Sequence[FileTable], remark: str) -> str:
    """Returns the text of a tuning file (templates/runtime/plan/tuning.h). Equal tables give equal texts."""
    lines = [FORMAT, f"library {build_id}", f"machine {machine}", f"# {remark}"]
    for table in tables:
        first = table.candidates[0]
        by_number = {c.number: c for c in table.candidates}
        root = "-" if first.root is None else str(first.root)
        lines.append(f"table {table.allocation} {first.collective.value} {root}")
        lines += [f"{_row(row)}  # {by_number[row.program].label()}" for row in table.rows]
    lines.append(f"end {sum(len(table.rows) for table in tables)}")
    return "\n".join(lines) + "\n"


def _row(row: Row) -> str:
    return f"{row.min_bytes} {row.program} {print_weights(row.weights) if row.weights else ''}".rstrip()


def write_whole(path: Path, text: str) -> None:
    """Writes a temporary file and renames it, so that a reader sees the old text or the new one.

    Raises:
        RunError: the file cannot be written.
    """
    try:
        with written_aside(path, 0o644) as aside, aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"cannot be written: {error.strerror}", where=str(path)) from error


class State:
    """The measurements so far, in a file next to the output.

    Only a run with the same library, machine, ranks and rules uses them again.
    """

    def __init__(self, output: Path, run: Mapping[str, Any]) -> None:
        self.path = output.with_name(output.name + ".state")
        self.run = dict(run)
        self.points: dict[str, dict[int, Point]] = {}

    def load(self) -> int:
        """Reads the points of an interrupted run and returns their number; 0 for a broken state or of another run."""
        try:
            value = json.loads(read_input(self.path, limit=_MOST_STATE))
            if value["format"] != STATE_FORMAT or value["run"] != self.run:
                return 0
            self.points = {
                name: {point["bytes"]: _point(point) for point in points} for name, points in value["points"].items()
            }
        except (CollcError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.points = {}
        return sum(map(len, self.points.values()))

    def add(self, collective: str, point: Point) -> None:
        self.points.setdefault(collective, {})[point.bytes] = point
        value = {
            "format": STATE_FORMAT,
            "run": self.run,
            "points": {
                name: [dataclasses.asdict(point) for point in points.values()] for name, points in self.points.items()
            },
        }
        write_whole(self.path, json.dumps(value, indent=1) + "\n")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def _point(value: dict[str, Any]) -> Point:
    point = Point(**{**value, "weights": tuple(value["weights"])})
    whole = (point.bytes, point.chosen, point.embedded, *point.weights)
    if not all(isinstance(n, int) and n >= 0 for n in whole):
        raise ValueError("no point")
    return point
