"""The simulator against published nccl-tests tables: `python benchmarks/simulate.py report|fit GENERATION`.

`published.json` holds the tables (size in bytes, microseconds) with their sources, each marked as fitted to or judged
on. `report` prints, in Markdown, the error of every table with the parameters of `collc.simulate.generations` and,
with `--plots DIR`, draws them; `fit` searches parameters of a generation on its `fit` tables alone and prints them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from pathlib import Path

from collc.collectives.model import Collective
from collc.simulate import nccl
from collc.simulate.generations import MACHINES
from collc.simulate.params import Machine
from collc.simulate.plot import figure, save
from collc.simulate.run import Simulator
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

TABLES = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
BIG = 1 << 20


class Model:
    """Predicts a table's sizes; programs are kept while only parameters change."""

    def __init__(self, table):
        here = Path(__file__).with_name(f"{table['topology']}.yaml")
        topology = load_topology(str(here) if here.is_file() else table["topology"])
        gpus = None if table["gpus"] is None else parse_gpus(topology, table["gpus"])
        self.table = table
        self.simulator = Simulator(plan_graph(topology, gpus), Collective(table["collective"]))

    def times(self, machine: Machine):
        self.simulator.machine = machine
        self.simulator.cases.clear()
        self.simulator.lumpers.clear()
        wanted = self.table.get("algorithm"), self.table.get("protocol")
        return [nccl.predict(self.simulator, size, *wanted).period_us(machine) for size, _ in self.table["rows"]]


def errors(table, times):
    """(size, measured, predicted, signed relative error)."""
    return [(b, m, t, t / m - 1) for (b, m), t in zip(table["rows"], times, strict=True)]


def median(values):
    return statistics.median(values) if values else math.nan


def report(plots: Path | None):
    print("| table | used to | sizes | median below 1 MiB | median from 1 MiB | worst (at) |")
    print("|---|---|--:|--:|--:|--:|")
    judged = {False: [], True: []}
    details = []
    for table in TABLES:
        if table["generation"] not in MACHINES:
            continue
        rows = errors(table, Model(table).times(MACHINES[table["generation"]]))
        by = {big: [abs(e) for b, _, _, e in rows if (b >= BIG) == big] for big in (False, True)}
        worst = max(rows, key=lambda row: abs(row[3]))
        shown = [f"{median(by[big]):.0%}" if by[big] else "-" for big in (False, True)]
        cells = [table["name"], table["role"], str(len(rows)), *shown, f"{worst[3]:+.0%} ({worst[0]})"]
        print(f"| {' | '.join(cells)} |")
        if table["role"] == "judge":
            for big in by:
                judged[big] += by[big]
        details.append((table, rows))
    for big, name in ((False, "below 1 MiB"), (True, "from 1 MiB")):
        found = judged[big]
        print(f"\njudged, {name}: median {median(found):.1%}, worst {max(found):.0%}, {len(found)} sizes")
    for table, rows in details:
        print(f"\n{table['name']}: " + ", ".join(f"{b}: {m:g} us, {e:+.0%}" for b, m, _, e in rows))
    if plots is not None:
        for generation in sorted({table["generation"] for table, _ in details}):
            draw(generation, [d for d in details if d[0]["generation"] == generation], plots)


def draw(generation, details, folder: Path):
    """One figure per generation: measured points, predicted lines."""
    drawn = figure()(figsize=(8, 5), layout="constrained")
    axes = drawn.subplots()
    for table, rows in details:
        (line,) = axes.loglog([r[0] for r in rows], [r[2] for r in rows], label=f"{table['name']} ({table['role']})")
        axes.loglog([r[0] for r in rows], [r[1] for r in rows], ".", color=line.get_color())
    axes.set(xlabel="bytes", ylabel="us", title=f"{generation}: measured (points) and simulated (lines)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    folder.mkdir(parents=True, exist_ok=True)
    save(drawn, folder / f"{generation}.svg")


def fit(generation: str, rounds: int):
    """Coordinate search in factors on the mean absolute log error; prints the machine found."""
    models = [Model(table) for table in TABLES if table["generation"] == generation and table["role"] == "fit"]
    point = start(MACHINES[generation])
    machine = MACHINES[generation]

    def loss(values):
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


def start(machine: Machine):
    """The parameters that are fitted, by name."""
    point = {"launch": machine.launch_us}
    if machine.floor_us:
        point["floor"] = machine.floor_us
    for protocol in machine.protocols:
        point[f"hop {protocol.name}"] = protocol.hop_us
        if protocol.name != "Simple":
            point[f"efficiency {protocol.name}"] = protocol.efficiency
    for kind, value in machine.classes.items():
        point[f"efficiency {kind.value}"] = value.efficiency
    return point


def rebuilt(machine: Machine, point) -> Machine:
    """The machine with fitted values put in."""
    protocols = tuple(
        dataclasses.replace(
            p,
            hop_us=point[f"hop {p.name}"],
            efficiency=point.get(f"efficiency {p.name}", p.efficiency),
        )
        for p in machine.protocols
    )
    classes = {
        kind: dataclasses.replace(value, efficiency=point[f"efficiency {kind.value}"])
        for kind, value in machine.classes.items()
    }
    return machine.replace(
        launch_us=point["launch"],
        floor_us=point.get("floor", 0.0),
        protocols=protocols,
        classes=classes,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["report", "fit"])
    parser.add_argument("generation", nargs="?", choices=sorted(MACHINES))
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.what == "report":
        report(arguments.plots)
    else:
        fit(arguments.generation, arguments.rounds)


if __name__ == "__main__":
    main()
