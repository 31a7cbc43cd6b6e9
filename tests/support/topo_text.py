"""Writes `nvidia-smi topo -m` tables as people paste them, from a machine that the test made up."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""


@dataclass
class Table:
    """GPUs 0..gpus-1, then `nics`; `cells` by (smaller, larger) device number, SYS where absent."""

    gpus: int
    nics: int = 0
    cells: dict[tuple[int, int], str] = field(default_factory=dict)
    affinity: list[str] = field(default_factory=list)
    numa: list[str] = field(default_factory=list)

    def cell(self, a: int, b: int) -> str:
        return " X " if a == b else self.cells.get((min(a, b), max(a, b)), "SYS")


STYLES = ("tabs", "spaces", "ansi", "hash", "quote", "no-lead", "soc", "crlf", "glued", "no-legend", "bom")


def render(table: Table, style: str = "tabs", *, nic_names: tuple[str, ...] = ()) -> str:
    """The table in one of `STYLES`; NICs get a legend if `nic_names` is given."""
    names = [f"GPU{i}" for i in range(table.gpus)] + [f"NIC{i}" for i in range(table.nics)]
    titles = ["CPU Affinity"] * bool(table.affinity) + ["NUMA Affinity"] * bool(table.numa)
    rows = [["", *names, *titles]]
    for i, name in enumerate(names):
        tail = [column[i] for column in (table.affinity, table.numa) if column] if i < table.gpus else []
        rows.append([name, *(table.cell(i, j) for j in range(len(names))), *tail])
    if style == "soc":
        rows = [[cell.replace("SYS", "SOC") for cell in row] for row in rows]
    text = "\n".join(_line(row, style, i == 0) for i, row in enumerate(rows)) + "\n"
    if style != "no-legend":
        text += LEGEND
    if nic_names:
        text += "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: {name}\n" for i, name in enumerate(nic_names))
    if style == "hash":
        text = "".join(f"# {line}\n" for line in text.splitlines())
    if style == "quote":
        text = "".join(f"> {line}\n" for line in text.splitlines())
    if style == "crlf":
        text = text.replace("\n", "\r\n")
    return "\ufeff" + text if style == "bom" else text


def _line(row: list[str], style: str, header: bool) -> str:
    if style == "spaces":
        return "".join(cell.ljust(8 if i < 1 else max(8, len(cell) + 2)) for i, cell in enumerate(row)).rstrip()
    if style == "ansi" and header:
        return "\t".join(["", *(f"\x1b[4m{cell}\x1b[0m" for cell in row[1:])])
    if style == "glued" and header:
        devices = [cell for cell in row[1:] if " " not in cell]
        return "\t    " + "".join(devices) + "\t" + "\t".join(row[1 + len(devices) :])
    if style == "no-lead" and header:
        return "\t".join(row[1:])
    return "\t".join(row)


def dgx1(count: dict[tuple[int, int], int], order: list[int] | None = None) -> Table:
    """Eight GPUs with NVLink counts by pair, renumbered: old GPU i is now order[i]."""
    place = order or list(range(8))
    cells = {}
    for (a, b), n in count.items():
        low, high = sorted((place[a], place[b]))
        cells[low, high] = f"NV{n}"
    return Table(8, 0, cells)


_ONE = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
_TWO = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
DGX1V = {**dict.fromkeys(_ONE, 1), **dict.fromkeys(_TWO, 2)}
DGX1P = dict.fromkeys([*_ONE, *_TWO], 1)


def shuffled(seed: int) -> list[int]:
    """A permutation of eight GPUs."""
    order = list(range(8))
    random.Random(seed).shuffle(order)
    return order


def _is_header(line: str) -> bool:
    return line.lstrip().startswith("GPU0") and " X" not in line


def _underlined(text: str) -> str:
    return "\n".join(
        "\x1b[4m" + line.replace("\t", "\x1b[0m\t\x1b[4m") + "\x1b[0m" if _is_header(line) else line
        for line in text.split("\n")
    )


def _each(text: str, before: str) -> str:
    return "\n".join((before + line).rstrip() for line in text.split("\n"))


# Changes that a table suffers between a terminal and a bug report. Any of them can occur, in this order.
ACCIDENTS: dict[str, Callable[[str], str]] = {
    "underlined header": _underlined,
    "old driver": lambda text: text.replace("SYS", "SOC"),
    "tabs expanded to 8": lambda text: text.expandtabs(8),
    "tabs expanded to 4": lambda text: text.replace("\t", "    "),
    "lines stripped": lambda text: "\n".join(line.strip() for line in text.split("\n")),
    "no legend": lambda text: text.split("\nLegend")[0],
    "prompt around": lambda text: f"user@host:~$ nvidia-smi topo -m\n{text}\nuser@host:~$ \n",
    "code fence": lambda text: f"```\n{text}\n```",
    "indented": lambda text: _each(text, "    "),
    "mpirun": lambda text: _each(text, "[1,0]<stdout>:"),
    "log": lambda text: _each(text, "2024-05-01T10:00:07.123456Z "),
    "commented": lambda text: _each(text, "# "),
    "quoted": lambda text: _each(text, "> "),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
}
