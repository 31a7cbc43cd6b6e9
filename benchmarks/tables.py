"""Measured results as data: text and tables, in YAML under docs/data/, and as pages of the site.

A benchmark prints its results as a Markdown page. `parse` reads such a page, `dump` writes the data file that git
tracks, and `render` makes the page of the site from that file (`make docs`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[1] / "docs" / "data"


@dataclass
class Section:
    """A part of a report: text, then a table. Without columns there is no table."""

    title: str = ""
    text: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


@dataclass
class Report:
    """The results of one benchmark.

    Attributes:
        title: the heading of the page.
        date: the day of the measurement, YYYY-MM-DD.
        hardware: the processor or GPU, with the number of cores and the kernel.
        version: the version of collc that was measured.
        sections: text and tables in order.
    """

    title: str
    date: str
    hardware: str
    version: str
    sections: list[Section]

    def rows(self, columns: str, title: str | None = None) -> list[dict[str, str]]:
        """Returns the rows of the tables that have a column of this name, each row by the names of its columns."""
        tables = [s for s in self.sections if columns in s.columns and title in (None, s.title)]
        assert tables, f"{self.title}: no table has a column {columns!r}"
        return [dict(zip(table.columns, row, strict=True)) for table in tables for row in table.rows]


def parse(page: str, date: str, hardware: str, version: str) -> Report:
    """Reads a page: a title, and blocks of text, headings and tables that blank lines separate."""
    title, *blocks = re.split(r"\n\s*\n", page.strip())
    sections = [Section()]
    for block in blocks:
        if heading := re.match(r"##+ (.*)", block):
            sections.append(Section(heading[1].strip()))
            block = block[heading.end() :].strip()
        if not block:
            continue
        is_table = block.startswith("|")
        if sections[-1].columns:
            sections.append(Section())
        if is_table:
            head, _, *rows = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in block.splitlines()]
            sections[-1].columns, sections[-1].rows = head, rows
        else:
            text = sections[-1].text
            sections[-1].text = f"{text}\n\n{block}" if text else block
    kept = [s for s in sections if s.title or s.text or s.columns]
    return Report(title.removeprefix("# "), date, hardware, version, kept)


def dump(report: Report) -> str:
    """Returns the data file of a report."""
    lines = [f"{name}: {_scalar(getattr(report, name))}" for name in ("title", "date", "hardware", "version")]
    lines.append("sections:")
    for section in report.sections:
        lines.append(f"- title: {_scalar(section.title)}")
        if section.text:
            lines += ["  text: |", *(f"    {line}".rstrip() for line in section.text.splitlines())]
        if section.columns:
            lines.append(f"  columns: {_flow(section.columns)}")
            lines += ["  rows:", *(f"  - {_flow(row)}" for row in section.rows)]
    return "\n".join(lines) + "\n"


def load(path: Path) -> Report:
    """Reads a data file."""
    data: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    sections = [
        Section(s["title"], s.get("text", "").rstrip("\n"), s.get("columns", []), s.get("rows", []))
        for s in data.pop("sections")
    ]
    return Report(**data, sections=sections)


def render(report: Report) -> str:
    """Returns the page of a report."""
    parts = [f"# {report.title}", f"{report.date}: {report.hardware}; {report.version}."]
    for section in report.sections:
        parts += [f"## {section.title}"] if section.title else []
        parts += [section.text] if section.text else []
        if section.columns:
            rows = [section.columns, ["---"] * len(section.columns), *section.rows]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(parts) + "\n"


def _scalar(text: str) -> str:
    """Returns a text in double quotes, which YAML reads as JSON does."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _flow(cells: list[str]) -> str:
    return f"[{', '.join(map(_scalar, cells))}]"
