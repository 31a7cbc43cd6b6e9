"""Renders `collc/simulator/judged.json`: the medians of docs/validation.md, and a page with all tables and plots.

`make validate` (simulate.py) writes judged.json. `make docs` (build_site.py) renders the page from it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collc.show.curves import Curve, Plot, Point, draw_plots
from collc.simulator.claims import JUDGED, LARGE_BYTES

HERE = Path(__file__).parent
TABLES: list[dict[str, Any]] = json.loads((HERE / "published.json").read_text(encoding="utf-8"))
REASONS: dict[str, str] = json.loads((HERE / "published_reasons.json").read_text(encoding="utf-8"))
ROLES = ("judge", "kept")
WORST_ROWS = 10
# A figure for each group of tables, so that a figure contains at most six plots.
FIGURES = {
    "v100": ("v100-all_reduce", "v100-all_gather", "v100-reduce_scatter", "v100-broadcast", "v100-2019-all_reduce"),
    "dgx2": ("dgx2-12-all_reduce", "dgx2-12-all_gather"),
    "a100": ("a100-40-all_reduce", "a100-40-all_gather", "a100-40-broadcast", "a100-80-all_reduce", "a100-80-mpi"),
    "rtx4090": ("4090-all_reduce", "4090-all_gather", "4090-broadcast", "4090-reduce_scatter"),
    "h100": ("h100-4-ring", "h100-4-tree", "h100-4-nvls", "h100-8-nvls", "h200-8"),
    "h800": ("h800-2-all_reduce", "h800-4-all_reduce", "h800-2-all_gather", "h800-4-all_gather", "h800-8-all_gather"),
    "infiniband-roce": ("h100-2-ib", "h100-8-ib", "a100-2-ib", "oci-a100-40-2", "azure-h100-2-pytorch"),
    "kept-back": ("a100-80-g8", "h100-2-one-server", "h100-8-290"),
    "networks-in-trouble": ("h100-2-290", "h100-2-290-ring", "dgx-h100-2"),
    "clouds": ("a3mega-2", "p5-2", "p4d-2", "abci-sharp-2"),
    "sockets": ("nvlstree-2-default", "nvlstree-2", "nvlstree-8-default", "nvlstree-8"),
}


def blind(table: dict[str, Any], size: int) -> bool:
    """Returns True if no parameter was fitted to this size of this table."""
    return table["role"] in ROLES and size not in table.get("fitted_sizes", ())


@dataclass(frozen=True)
class Judgement:
    """One published table with the model's predictions.

    Attributes:
        table: the table's entry in published.json.
        servers: the number of servers.
        rows: (bytes, measured microseconds, predicted microseconds) by size.
    """

    table: dict[str, Any]
    servers: int
    rows: tuple[tuple[int, float, float], ...]

    def errors(self, large: bool, *, blind_only: bool = False) -> list[float]:
        """Returns the absolute relative errors of the sizes from 1 MiB up, or of those below."""
        rows = [row for row in self.rows if (row[0] >= LARGE_BYTES) == large]
        return [abs(t / m - 1) for size, m, t in rows if not blind_only or blind(self.table, size)]


def load() -> list[Judgement]:
    """Reads judged.json, in the order of published.json."""
    entries = {entry["table"]: entry for entry in json.loads(JUDGED.read_text(encoding="utf-8"))["tables"]}
    return [
        Judgement(
            table,
            entries[table["name"]]["servers"],
            tuple((size, m, t) for size, m, t, _ in entries[table["name"]]["rows"]),
        )
        for table in TABLES
    ]


def medians(judgements: Iterable[Judgement]) -> list[str]:
    """Returns the table of median errors, by number of servers and size, on sizes that nothing was fitted to."""
    lines = ["| sizes | one server, below 1 MiB | from 1 MiB | several servers, below | from 1 MiB |"]
    lines.append("|---|--:|--:|--:|--:|")
    everything = list(judgements)
    for label, roles, with_troubled in (
        ("judged", ("judge",), False),
        ("kept back", ("kept",), False),
        ("both", ROLES, False),
        ("both, and networks in trouble", ROLES, True),
    ):
        cells = []
        for several in (False, True):
            part = [e for e in everything if e.table["role"] in roles and (e.servers > 1) == several]
            part = [e for e in part if with_troubled or not e.table.get("troubled")]
            for large in (False, True):
                values = [error for each in part for error in each.errors(large, blind_only=True)]
                cells.append(f"{statistics.median(values):.1%} of {len(values)}" if values else "-")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def page(judgements: Sequence[Judgement]) -> str:
    """Returns the page with an error row for each table, the largest errors and the plots."""
    lines = [
        "# Published tables and the model",
        "",
        "`make docs` writes this page from `collc/simulator/judged.json`. Each table is from its authors; the model",
        "simulates NCCL. A cell is the median of the absolute errors. *fit*: all sizes were used to set parameters.",
        '*judge*: none was, except at the sizes after "fit at". *kept back*: read after all parameters were final.',
        "",
        "| table | used to | sizes | below 1 MiB | from 1 MiB | worst (at) |",
        "|---|---|--:|--:|--:|---|",
    ]
    for each in judgements:
        size, measured, predicted = max(each.rows, key=lambda row: abs(row[2] / row[1] - 1))
        cells = [each.table["name"], _role(each.table), str(len(each.rows))]
        for large in (False, True):
            values = each.errors(large)
            cells.append(f"{statistics.median(values):.0%}" if values else "-")
        lines.append(f"| {' | '.join(cells)} | {predicted / measured - 1:+.0%} ({size_text(size)}) |")
    return "\n".join([*lines, "", *_worst_rows(judgements), "", *_plots_section()]) + "\n"


def draw_plots_of(judgements: Sequence[Judgement], folder: Path) -> None:
    """Draws predicted over measured time by size: 1 is right, and a band marks 15% to each side."""
    by_name = {each.table["name"]: each for each in judgements}
    for figure, names in FIGURES.items():
        plots = []
        for each in (by_name[name] for name in names):
            curve = Curve("predicted / measured", tuple(Point(size, t / m) for size, m, t in each.rows))
            title = f"{each.table['name']} ({each.table['role']})"
            plots.append(
                Plot(title, "predicted / measured time", (curve,), one=True, band=(1 / 1.15, 1.15), named=False)
            )
        draw_plots(folder / f"validation-{figure}.svg", plots, figure)


def _worst_rows(judgements: Sequence[Judgement]) -> list[str]:
    lines = [
        f"## The {WORST_ROWS} largest errors",
        "",
        "| table | at | measured us | predicted us | error | why |",
        "|---|--:|--:|--:|--:|---|",
    ]
    calm = [each for each in judgements if not each.table.get("troubled")]
    rows = [(each.table, row) for each in calm for row in each.rows if blind(each.table, row[0])]
    rows.sort(key=lambda pair: -abs(math.log(pair[1][2] / pair[1][1])))
    for table, (size, measured, predicted) in rows[:WORST_ROWS]:
        why = REASONS.get(table["name"], "not known")
        error = f"{predicted / measured - 1:+.0%}"
        lines.append(f"| {table['name']} | {size_text(size)} | {measured:g} | {predicted:.1f} | {error} | {why} |")
    return lines


def _plots_section() -> list[str]:
    lines = [
        "## Plots",
        "",
        "Predicted over measured time: above 1 the model is too slow. The band is 15% to each side.",
    ]
    for figure in FIGURES:
        lines += ["", f"![{figure}](figures/validation-{figure}.svg)"]
    return lines


def _role(table: dict[str, Any]) -> str:
    sizes = table.get("fitted_sizes")
    role = "kept back" if table["role"] == "kept" else table["role"]
    role += ", network in trouble" if table.get("troubled") else ""
    return role if not sizes else f"{role}; fit at {', '.join(map(size_text, sizes))}"


def size_text(size: int) -> str:
    """Returns a size as 4 KiB or 64 MiB, rounded if it is no multiple."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit * 0.95:
            return f"{size / unit:.0f} {name}"
    return f"{size} B"
