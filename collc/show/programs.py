"""Makes views of programs: the text of the IR, and two texts side by side."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from collc.errors import CollcError
from collc.inputs import read_input
from collc.ir.nodes import Program
from collc.ir.printer import parse_program, print_program
from collc.limits import limited
from collc.options import CUDA, HOST
from collc.pipeline import stage_names
from collc.show.page import View

# The most lines of a text that are compared and shown.
MOST_LINES = 6_000
MOST_DUMPS = 64


@dataclass(frozen=True)
class Text:
    """A program as its canonical text. `label` names the program, `stage` the pass before it."""

    label: str
    stage: str
    lines: tuple[str, ...]
    summary: str


def read_program(text: str, path: Path) -> Text:
    """Returns an IR text, parsed and printed again, so that two files differ only if their programs do.

    Raises:
        IRError: the text is no program.
    """
    with limited(path):
        program = parse_program(text, str(path))
    label, _, stage = path.name.removesuffix(".ir").partition(".")
    return Text(label, stage or label, tuple(print_program(program).splitlines()), _summary(program))


def read_dumps(folder: Path) -> list[Text]:
    """Returns the programs in a folder of `collc compile --dump-after`, sorted by program and pass.

    Raises:
        CollcError: there are too many programs.
    """
    order = list(dict.fromkeys([*stage_names(CUDA), *stage_names(HOST)]))
    paths = sorted(folder.glob("*.ir"))
    if len(paths) > MOST_DUMPS:
        hint = "choose fewer stages or collectives, or show single files with --compare"
        raise CollcError(f"{len(paths)} programs are too many for a page", where=str(folder), hint=hint)
    found = [read_program(read_input(path, limit=64 << 20).decode("utf-8", "replace"), path) for path in paths]
    return sorted(found, key=lambda t: (t.label, order.index(t.stage) if t.stage in order else len(order), t.stage))


def _summary(program: Program) -> str:
    steps = sum(len(steps) for channel in program.channels for steps in channel.steps)
    return (
        f"{program.collective.value}, {program.nranks} ranks: {len(program.channels)} channels, "
        f"{len(program.shares)} shares, {len(program.fifos)} FIFOs, {steps} steps, {program.slots} slots"
    )


def program_view(programs: Sequence[Text]) -> View:
    """Returns a view of pairs: each stage of a program and the next one, or two programs that are compared.

    A program without another stage is shown by itself.
    """
    by_label: dict[str, list[Text]] = {}
    for each in programs:
        by_label.setdefault(each.label, []).append(each)
    if len(programs) == 2 and len(by_label) == 2:
        by_label = {programs[0].label: list(programs)}
    pairs = []
    for held in by_label.values():
        pairs += [_side_by_side(a, b) for a, b in pairwise(held)] if len(held) > 1 else [_alone(held[0])]
    return View("program", "Program", {"pairs": pairs})


def _alone(text: Text) -> dict[str, Any]:
    rows = [["same", line, line] for line in text.lines[:MOST_LINES]]
    left_out = max(0, len(text.lines) - MOST_LINES)
    return {"title": text.label, "before": text.summary, "after": None, "rows": rows, "left_out": left_out}


def _side_by_side(before: Text, after: Text) -> dict[str, Any]:
    a, b = list(before.lines[:MOST_LINES]), list(after.lines[:MOST_LINES])
    rows: list[list[str]] = []
    for op, a1, a2, b1, b2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        left, right = a[a1:a2], b[b1:b2]
        kind = {"equal": "same", "replace": "change", "delete": "remove", "insert": "add"}[op]
        for i in range(max(len(left), len(right))):
            rows.append([kind, left[i] if i < len(left) else "", right[i] if i < len(right) else ""])
    one = f"{before.label} after {before.stage}" if before.label == after.label else before.label
    other = after.stage if before.label == after.label else after.label
    return {
        "title": f"{one} | {other}",
        "before": before.summary,
        "after": after.summary,
        "rows": rows,
        "left_out": max(0, len(before.lines) - MOST_LINES, len(after.lines) - MOST_LINES),
    }
