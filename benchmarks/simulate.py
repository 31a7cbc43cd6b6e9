"""The simulator against published nccl-tests tables: `python benchmarks/simulate.py report|fit GENERATION`.

`published.json` holds the tables (size in bytes, microseconds) with their sources, each marked as fitted to, judged on,
or kept back until all parameters were final. `report` predicts every size and writes the predictions to
`collc/simulator/judged.json` and the medians between the markers of docs/validation.md. `fit` searches parameters of
a generation only on its `fit` tables and prints them. validation_pages.py renders tables and plots from judged.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from validation_pages import TABLES, blind, load, medians

from collc.collectives.model import Collective
from collc.simulator.claims import JUDGED, machine_key
from collc.simulator.generations import MACHINES
from collc.simulator.nccl import Nccl
from collc.simulator.nccl.baseline import SLOTS
from collc.simulator.params import Machine
from collc.simulator.run import Simulator
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "validation.md"
MARKS = ("<!-- figures: written by `make validate` -->", "<!-- end of figures -->")


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


def judged(tables: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Predicts every size of the tables; returns what `collc.simulator.claims` reads."""
    for table in tables:
        model = Model(table)
        rows = zip(table["rows"], model.times(), strict=True)
        yield {
            "table": table["name"],
            **{key: table[key] for key in ("generation", "collective", "role", "nccl")},
            "machine": machine_key(model.graph),
            "servers": model.nccl.shape.servers,
            "fabric": table.get("fabric"),
            "rows": [[b, m, round(t, 2), int(not blind(table, b))] for (b, m), t in rows],
        }


def report() -> None:
    """Writes judged.json and the medians of docs/validation.md."""
    lines = [" " + json.dumps(entry) for entry in judged(TABLES)]
    JUDGED.write_text('{"tables": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    text = "\n".join(medians(load()))
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}", encoding="utf-8")


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
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.what == "report":
        report()
    elif arguments.generation is None:
        parser.error("fit needs a generation")
    else:
        fit(arguments.generation, arguments.rounds)


if __name__ == "__main__":
    main()
