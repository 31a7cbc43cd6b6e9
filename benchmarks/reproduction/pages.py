"""The pages of `make reproduce`: a page for each source, an index, and the data file of all answers."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence

from reproduction.claims import IMPOSSIBLE, OFF, REPRODUCED, SIMULATED, VERDICTS, Claim, Item, Row, Source

NO_REASON = "NO REASON IS GIVEN"
Rows = Sequence[tuple[Item, Sequence[Row], str]]
HEADER = "| claim | source | ours | difference | how | verdict |\n|---|--:|--:|--:|---|---|"


def digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{places}f}"


def _theirs(claim: Claim) -> str:
    if claim.theirs is None:
        return "-"
    low, high = claim.theirs if isinstance(claim.theirs, tuple) else (claim.theirs, claim.theirs)
    text = digits(low) if low == high else f"{digits(low)} to {digits(high)}"
    return " ".join(filter(None, (claim.bound, text, claim.unit)))


def _ours(row: Row) -> str:
    if row.answer is None:
        return "-"
    if row.answer.shown:
        return row.answer.shown
    if row.claim.theirs is None:
        return "holds" if row.answer.value else "does not hold"
    return f"{digits(float(row.answer.value))} {row.claim.unit}".strip()


def _difference(row: Row) -> str:
    if row.difference is None:
        return "-"
    return "none" if abs(row.difference) < 0.0005 else f"{row.difference:+.1%}"


def line(row: Row) -> str:
    """The row of a claim; `unexplained` finds what is off the mark or out of reach without a reason."""
    claim, verdict = row.claim, row.verdict
    reason = row.reason
    if not reason and verdict in (OFF, IMPOSSIBLE):
        reason = NO_REASON
    how = f"{row.answer.way}: {row.answer.how}" if row.answer else "-"
    cells = [claim.says, _theirs(claim), _ours(row), _difference(row), how, verdict + (f": {reason}" if reason else "")]
    return "| " + " | ".join(cell.replace("|", "&#124;") for cell in cells) + " |"


def counts(rows: Rows) -> Counter[str]:
    """The number of claims of each verdict."""
    return Counter(row.verdict for _, found, _ in rows for row in found)


def page(source: Source, rows: Rows) -> str:
    """A source: every item in order, its claims, what was generated beside them."""
    found = counts(rows)
    total = ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS)
    parts = [
        f"# {source.title}",
        f"Written by `make reproduce`. {source.citation}",
        f"{sum(found.values())} claims: {total}. [What the words mean](index.md).",
    ]
    for item, answered, text in rows:
        parts.append(f"## {item.at}: {item.title}" if item.at != item.title else f"## {item.at}")
        if item.note:
            parts.append(item.note)
        parts.append("\n".join([HEADER, *map(line, answered)]))
        if item.plot:
            parts.append(f"![{item.title}](figures/{item.plot}.svg)")
        if text:
            parts.append(text.strip())
    return "\n\n".join(parts) + "\n"


def answers(found: Sequence[tuple[Source, Rows]]) -> str:
    """Returns docs/data/reproduced.csv: one row for each claim."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["source", "item", "claim", "theirs", "ours", "difference", "way", "verdict"])
    for source, rows in found:
        for item, answered, _ in rows:
            for row in answered:
                way = row.answer.way if row.answer else "-"
                cells = [row.claim.id, _theirs(row.claim), _ours(row), _difference(row), way, row.verdict]
                writer.writerow([source.name, item.at, *cells])
    return out.getvalue()


INTRODUCTION = """# The sources, reproduced

Written by `make reproduce` from the repository alone. collc implements a system that five documents describe. Every
figure, table and heading of theirs is here in order with what it claims, our figure, the difference, and how ours was
obtained. Nothing on these pages was measured on a GPU by us.

- **proved**: an exact optimum or count with a certificate that is checked (fractions, no floating point).
- **counted**: read off a plan, a program or a table of collc.
- **simulated**: by the model of [simulate.md](../simulate.md); the row names the parameters of the GPU generation, and
  the median error of NCCL's calls in the same model where measurements exist ([validation.md](../validation.md)).
- **measured**: on the host target, with ranks on the CPUs of one machine; only ratios and equal bits are shown.

A proved, counted or measured figure counts as *reproduced* if it differs by 2% at most, which is the rounding of the
sources, or if the statement holds. A simulated one counts as *simulated within 15%* if it differs by that at most
or the statement holds in the model. Everything else is *off by more* or *impossible here*, with the reason. Where a
source gives a range or a bound, the difference is that to its nearest end.
"""


def index(found: Sequence[tuple[Source, Rows]]) -> str:
    """The summary: counts per source, then all that is off and all that is impossible."""
    lines = ["| source | claims | reproduced | simulated within 15% | off by more | impossible here |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    total: Counter[str] = Counter()
    for source, rows in found:
        verdicts = counts(rows)
        total += verdicts
        lines.append(_count_line(f"[{source.title}]({source.name}.md)", verdicts))
    lines.append(_count_line("all", total))
    parts = [INTRODUCTION.strip(), "\n".join(lines)]
    for verdict, title in ((OFF, "Off by more, and why"), (IMPOSSIBLE, "Impossible here, and why")):
        rows_of = [
            f"- {source.title}, {item.at}: {row.claim.says}"
            + (f" ({_difference(row)})" if row.difference is not None else "")
            + f". {row.reason}"
            for source, rows in found
            for item, answered, _ in rows
            for row in answered
            if row.verdict == verdict
        ]
        parts += [f"## {title}", "\n".join(rows_of) or "Nothing."]
    return "\n\n".join(parts) + "\n"


def _count_line(name: str, verdicts: Counter[str]) -> str:
    return f"| {name} | {sum(verdicts.values())} | " + " | ".join(str(verdicts[v]) for v in VERDICTS) + " |"


def unexplained(found: Sequence[tuple[Source, Rows]]) -> list[str]:
    """Claims whose verdict needs a reason that their list lacks, and reasons of rows that are not off."""
    problems = []
    for source, rows in found:
        for row in (row for _, answered, _ in rows for row in answered):
            if row.verdict == OFF and not row.reason:
                problems.append(f"{source.name}: {row.claim.id} is off and has no reason")
            if (
                row.verdict in (REPRODUCED, SIMULATED)
                and row.claim.reason
                and row.answer
                and row.answer.way != "measured"
            ):
                problems.append(f"{source.name}: {row.claim.id} has a reason and is not off")
    return problems
