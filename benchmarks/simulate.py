"""The simulator against published nccl-tests tables: `python benchmarks/simulate.py report|fit GENERATION`.

`published.json` holds the tables (size in bytes, microseconds) with their sources, each marked as fitted to, judged on,
or kept back until all parameters stood. `report` predicts every size, writes the errors to
`collc/simulator/judged.json`, the figures between the markers of docs/validation.md and, with `--plots DIR`, plots;
`fit` searches parameters of a generation on its `fit` tables alone and prints them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from collc.collectives.model import Collective
from collc.show.curves import Curve, Plot, Point, draw_plots
from collc.simulator.claims import JUDGED, LARGE_BYTES, machine_key
from collc.simulator.generations import MACHINES
from collc.simulator.nccl import Nccl
from collc.simulator.nccl.baseline import SLOTS
from collc.simulator.params import Machine
from collc.simulator.run import Simulator
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

HERE = Path(__file__).parent
TABLES = json.loads((HERE / "published.json").read_text(encoding="utf-8"))
# Medians of the model as it was before several servers, NVLS and limits by bytes touched: (below, from 1 MiB).
BEFORE = json.loads((HERE / "published_before.json").read_text(encoding="utf-8"))
PAGE = HERE.parent / "docs" / "validation.md"
MARKS = ("<!-- figures: written by `make validate` -->", "<!-- end of figures -->")
ROLES = ("judge", "kept")


class Model:
    """Predicts a table's sizes; programs are kept while only parameters change."""

    def __init__(self, table: dict[str, Any]) -> None:
        here = HERE / f"{table['topology']}.yaml"
        topology = load_topology(str(here) if here.is_file() else table["topology"])
        gpus = None if table["gpus"] is None else parse_gpus(topology, table["gpus"])
        self.table = table
        self.graph = plan_graph(topology, gpus)
        machine = MACHINES[table["generation"]]
        self.simulator = Simulator(
            self.graph, Collective(table["collective"]), None, machine, slots=SLOTS, of_nccl=True
        )
        options = {key: table[key] for key in ("sharp", "ring_nic_gbps") if key in table}
        self.nccl = Nccl(self.simulator, table["nccl"], table.get("fabric"), together=table["together"], **options)

    def times(self, machine: Machine | None = None) -> list[float]:
        """Predicted microseconds of every size of the table."""
        if machine is not None:
            self.simulator.machine = machine
            self.simulator.cases.clear()
            self.simulator.lumpers.clear()
            for kept in ("setting", "shape"):
                self.nccl.__dict__.pop(kept, None)
        wanted = self.table.get("algorithm"), self.table.get("protocol")
        return [self.nccl.predict(size, *wanted).period_us for size, _ in self.table["rows"]]


def errors(table: dict[str, Any], times: Sequence[float]) -> list[tuple[int, float, float, float]]:
    """(size, measured, predicted, signed relative error)."""
    return [(b, m, t, t / m - 1) for (b, m), t in zip(table["rows"], times, strict=True)]


def blind(table: dict[str, Any], size: int) -> bool:
    """Whether no parameter was fitted to this size of this table."""
    return table["role"] in ROLES and size not in table.get("fitted_sizes", ())


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


@dataclasses.dataclass
class Judgement:
    """The errors of one table."""

    table: dict[str, Any]
    servers: int
    machine: str
    rows: list[tuple[int, float, float, float]]

    def of(self, large: bool, *, blind_only: bool = False) -> list[float]:
        """Absolute errors of one class of sizes."""
        rows = [r for r in self.rows if (r[0] >= LARGE_BYTES) == large and (not blind_only or blind(self.table, r[0]))]
        return [abs(r[3]) for r in rows]

    def entry(self) -> dict[str, Any]:
        """What `collc.simulator.claims` reads."""
        keys = ("generation", "collective", "role", "nccl")
        return {
            "table": self.table["name"],
            **{key: self.table[key] for key in keys},
            "machine": self.machine,
            "servers": self.servers,
            "fabric": self.table.get("fabric"),
            "rows": [[b, m, round(t, 2), int(not blind(self.table, b))] for b, m, t, _ in self.rows],
        }


def judged(tables: Sequence[dict[str, Any]]) -> Iterator[Judgement]:
    for table in tables:
        model = Model(table)
        yield Judgement(table, model.nccl.shape.servers, machine_key(model.graph), errors(table, model.times()))


def report(plots: Path | None) -> None:
    found = list(judged(TABLES))
    lines = [" " + json.dumps(each.entry()) for each in found]
    JUDGED.write_text('{"tables": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")
    text = "\n".join(_page(found))
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}", encoding="utf-8")
    if plots is not None:
        for name, prefixes in FIGURES.items():
            draw(name, [each for each in found if each.table["name"] in prefixes], plots)


def _page(found: Sequence[Judgement]) -> list[str]:
    """The figures of docs/validation.md."""
    lines = [
        "",
        "### Medians",
        "",
        "| sizes | one server, below 1 MiB | from 1 MiB | several servers, below | from 1 MiB |",
    ]
    lines.append("|---|--:|--:|--:|--:|")
    for label, roles, troubled in (
        ("judged", ("judge",), False),
        ("kept back", ("kept",), False),
        ("both", ROLES, False),
        ("both, and networks in trouble", ROLES, True),
    ):
        cells = []
        for several in (False, True):
            part = [e for e in found if e.table["role"] in roles and (e.servers > 1) == several]
            part = [e for e in part if troubled or not e.table.get("troubled")]
            for large in (False, True):
                values = [v for each in part for v in each.of(large, blind_only=True)]
                cells.append(f"{median(values):.1%} of {len(values)}" if values else "-")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    lines += [
        "",
        "### Tables",
        "",
        "| table | used to | sizes | below 1 MiB | before | from 1 MiB | before | worst (at) |",
    ]
    lines.append("|---|---|--:|--:|--:|--:|--:|---|")
    for each in found:
        worst = max(each.rows, key=lambda row: abs(row[3]))
        before = BEFORE.get(each.table["name"], [None, None])
        cells = [each.table["name"], _role(each.table), str(len(each.rows))]
        for large in (False, True):
            values = each.of(large)
            cells += [f"{median(values):.0%}" if values else "-", _percent(before[large])]
        lines.append(f"| {' | '.join(cells)} | {worst[3]:+.0%} ({_shown(worst[0])}) |")
    lines += [
        "",
        "### The worst ten",
        "",
        "| table | at | measured us | predicted us | error | why |",
        "|---|--:|--:|--:|--:|---|",
    ]
    calm = [each for each in found if not each.table.get("troubled")]
    rows = [(each.table, row) for each in calm for row in each.rows if blind(each.table, row[0])]
    rows.sort(key=lambda pair: -abs(math.log1p(pair[1][3])))
    for table, (size, measured, predicted, error) in rows[:10]:
        why = REASONS.get(table["name"], "not known")
        lines.append(f"| {table['name']} | {_shown(size)} | {measured:g} | {predicted:.1f} | {error:+.0%} | {why} |")
    return [*lines, ""]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _role(table: dict[str, Any]) -> str:
    sizes = table.get("fitted_sizes")
    kind = "kept back" if table["role"] == "kept" else table["role"]
    kind += ", network in trouble" if table.get("troubled") else ""
    return kind if not sizes else f"{kind}; fit at {', '.join(map(_shown, sizes))}"


def _shown(size: int) -> str:
    """4 KiB, 64 MiB; odd sizes rounded."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit * 0.95:
            return f"{size / unit:.0f} {name}"
    return f"{size} B"


REASONS = json.loads((HERE / "published_reasons.json").read_text(encoding="utf-8"))
# A figure for each group: ratios over sizes, few lines each.
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


def draw(name: str, found: Sequence[Judgement], folder: Path) -> None:
    """Predicted over measured time by size, a plot per kind of call; 1 is right, the band is 15% to each side."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = []
    for each in found:
        points = tuple(Point(r[0], r[3] + 1) for r in each.rows)
        title = f"{each.table['name']} ({each.table['role']})"
        curve = Curve("predicted / measured", points)
        plots.append(Plot(title, "predicted / measured time", (curve,), one=True, band=(1 / 1.15, 1.15), named=False))
    draw_plots(folder / f"validation-{name}.svg", plots, name)


def fit(generation: str, rounds: int) -> None:
    """Coordinate search in factors on the mean absolute log error; prints the machine found."""
    models = [Model(table) for table in TABLES if table["generation"] == generation and table["role"] == "fit"]
    machine = MACHINES[generation]
    point = start(machine)

    def loss(values: dict[str, float]) -> float:
        made = rebuilt(machine, values)
        found = [abs(math.log(t / m)) for model in models for _, m, t, _ in errors(model.table, model.times(made))]
        return sum(found) / len(found)

    best, factor = loss(point), 1.25
    for _ in range(rounds):
        moved = False
        for key in point:
            for by in (factor, 1 / factor):
                tried = {**point, key: point[key] * by}
                # LL spends half of a link on flags; below a quarter a fit would explain something else with it.
                if key.startswith("efficiency") and not 0.25 <= tried[key] <= 1:
                    continue
                value = loss(tried)
                if value < best * 0.999:
                    point, best, moved = tried, value, True
                    break
        print(f"{best:.4f}", {k: round(v, 4) for k, v in point.items()}, flush=True)
        if not moved:
            factor = factor**0.5


def start(machine: Machine) -> dict[str, float]:
    """The parameters that are fitted, by name."""
    point = {"launch": machine.launch_us}
    for protocol in machine.protocols:
        point[f"hop {protocol.name}"] = protocol.hop_us
        if protocol.name != "Simple":
            point[f"efficiency {protocol.name}"] = protocol.efficiency
    for kind, value in machine.classes.items():
        point[f"efficiency {kind.value}"] = value.efficiency
    return point


def rebuilt(machine: Machine, point: dict[str, float]) -> Machine:
    """The machine with fitted values put in."""
    protocols = tuple(
        dataclasses.replace(
            p, hop_us=point[f"hop {p.name}"], efficiency=point.get(f"efficiency {p.name}", p.efficiency)
        )
        for p in machine.protocols
    )
    classes = {
        kind: dataclasses.replace(value, efficiency=point[f"efficiency {kind.value}"])
        for kind, value in machine.classes.items()
    }
    return machine.replace(launch_us=point["launch"], protocols=protocols, classes=classes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["report", "fit"])
    parser.add_argument("generation", nargs="?", choices=sorted(MACHINES))
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.what == "report":
        report(arguments.plots)
    elif arguments.generation is None:
        parser.error("fit needs a generation")
    else:
        fit(arguments.generation, arguments.rounds)


if __name__ == "__main__":
    main()
