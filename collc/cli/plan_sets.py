"""Plans of many GPU sets of one machine: `collc plan --allocations connected` and `--compare rings`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from collc.build.plans import SolutionCache
from collc.cli.report import compact, progress, ranges, table
from collc.collectives.model import Collective
from collc.packing import Plan, plan
from collc.packing.allocations import Allocation
from collc.packing.cluster_sets import spread
from collc.packing.document import plan_file, to_json
from collc.packing.rings import MAX_GPUS, best_rings, ring_rate
from collc.topology.canonical import fingerprint
from collc.topology.graph import FAST, plan_graph
from collc.topology.model import Topology

_COMPARED = (Collective.BROADCAST, Collective.ALL_GATHER, Collective.ALL_REDUCE)


@dataclass(frozen=True)
class SetPlans:
    """One allocation, its plans, and the width of one link of the machine."""

    allocation: Allocation
    plans: tuple[Plan, ...]
    unit: Fraction

    def rings(self) -> int | None:
        """The most NCCL-style rings, one direction each; None where they are too many to list."""
        if self.allocation.graph.nranks > MAX_GPUS:
            return None
        return best_rings(self.allocation.graph, self.unit)


def one_set(machine: Topology, gpus: Sequence[str], links: str | None) -> list[Allocation]:
    """These GPUs as the only allocation."""
    graph = plan_graph(machine, gpus, links)
    return [Allocation(tuple(gpus), graph, fingerprint(graph))]


def plan_sets(
    machine: Topology, found: Sequence[Allocation], collectives: Sequence[Collective], solver: str
) -> list[SetPlans]:
    """Plans of every allocation; a ring is as wide as the machine's thinnest fast link."""
    unit = _ring_unit(machine, found)
    show = progress("plan")
    rows = []
    for i, allocation in enumerate(found):
        show(f"{i + 1} of {len(found)}: {' '.join(allocation.gpus)}")
        rows.append(
            SetPlans(
                allocation,
                tuple(plan(allocation.graph, c, None, solver, store=SolutionCache()) for c in collectives),
                unit,
            )
        )
    show("")
    return ranked(machine, rows) if len(machine.servers) > 1 else rows


def ranked(machine: Topology, rows: Sequence[SetPlans]) -> list[SetPlans]:
    """Sets of one size from the best to the worst for a job: by the rate of all_reduce, or else of the first
    collective; at equal rates fewer servers first."""

    def key(row: SetPlans) -> tuple[int, Fraction, int]:
        rates = {p.collective: p.rate or Fraction(0) for p in row.plans}
        rate = rates.get(ranking(row.plans), Fraction(0))
        return len(row.allocation.gpus), -rate, len(spread(machine, row.allocation.gpus))

    return sorted(rows, key=key)


def ranking(plans: Sequence[Plan]) -> Collective:
    """The collective by whose rate sets are ranked."""
    held = [p.collective for p in plans]
    return Collective.ALL_REDUCE if Collective.ALL_REDUCE in held else held[0]


def _ring_unit(machine: Topology, found: Sequence[Allocation]) -> Fraction:
    """How wide one ring is: the machine's thinnest link of the fast kinds that the sets use, else of all they use.

    A set may use double links alone; NCCL's rings still take single ones.
    """
    used = [x for a in found for x in a.graph.links]
    fast = {x.kind for x in used} & FAST
    widths = [x.gbps for x in machine.links if x.kind in fast] or [x.gbps for x in used]
    return min(widths, default=Fraction(1))


def speedups(row: SetPlans, rings: int | None) -> dict[Collective, Fraction]:
    """Rate over the rate of the best rings, for the collectives that Blink compares."""
    if rings is None:
        return {}
    n = row.allocation.graph.nranks
    return {
        p.collective: p.rate / ring_rate(p.collective, n, rings, row.unit)
        for p in row.plans
        if p.collective in _COMPARED and p.rate is not None
    }


def sets_json(machine: Topology, rows: Sequence[SetPlans], *, rings: bool) -> dict[str, Any]:
    """One entry per allocation with its whole plan document; on several servers ranked within its size."""
    entries = []
    several = len(machine.servers) > 1
    place: dict[int, int] = {}
    for row in rows:
        entry: dict[str, Any] = {"gpus": list(row.allocation.gpus), "fingerprint": row.allocation.fingerprint}
        if several:
            size = len(row.allocation.gpus)
            place[size] = place.get(size, 0) + 1
            rate = {p.collective: p.rate for p in row.plans}[ranking(row.plans)]
            entry["place"] = place[size]
            entry["servers"] = dict(spread(machine, row.allocation.gpus))
            entry["rate_gbps"] = None if rate is None else str(rate)
        if rings:
            count = row.rings()
            entry["rings"] = count
            entry["link_gbps"] = str(row.unit)
            entry["speedup"] = {c.value: str(value) for c, value in speedups(row, count).items()}
        entry["plan"] = to_json(plan_file(row.allocation.graph, row.plans))
        entries.append(entry)
    value: dict[str, Any] = {"format": "collc-allocations/1"}
    if several and rows:
        value["ranked_by"] = ranking(rows[0].plans).value
    return {**value, "allocations": entries}


def sets_text(machine: Topology, rows: Sequence[SetPlans], *, rings: bool) -> str:
    """A row per allocation: rates in GB/s, and with `rings` the speedup over them."""
    wanted = [p.collective for p in rows[0].plans] if rows else []
    header = ["GPUs", *(c.value for c in wanted)]
    compared = [c for c in _COMPARED if c in wanted] if rings else []
    if rings:
        header += ["rings", *(f"x {c.value}" for c in compared)]
    gains: dict[Collective, list[float]] = {c: [] for c in compared}
    lines = []
    for row in rows:
        cells = [_gpu_names(machine, row), *("-" if p.rate is None else compact(p.rate) for p in row.plans)]
        if rings:
            count = row.rings()
            faster = speedups(row, count)
            cells += ["-" if count is None else str(count)]
            cells += [f"{float(faster[c]):.2f}" if c in faster else "-" for c in compared]
            for c in faster:
                gains[c].append(float(faster[c]))
        lines.append(cells)
    order = f", best first by {ranking(rows[0].plans).value}" if len(machine.servers) > 1 and rows else ""
    text = f"{machine.name}: {len(rows)} distinct allocations, GB/s{order}\n" + table(header, lines)
    if rings and rows:
        means = ", ".join(
            f"{c.value} {math.exp(sum(map(math.log, g)) / len(g)):.2f} (largest {max(g):.2f})"
            for c, g in gains.items()
            if g
        )
        text += f"\ngeometric mean over rings: {means}" if means else ""
        text += f"\nrings: one direction each, of one {compact(rows[0].unit)} GB/s link; 0: PCIe at half a link"
    return text


def _gpu_names(machine: Topology, row: SetPlans) -> str:
    """As --gpus takes them: numbers within the machine, or within each of several servers: ``node0:0-3,node7:1``."""
    if len(machine.servers) > 1:
        return _by_server(machine, row.allocation.gpus)
    names = [v.name for v in machine.gpus]
    return ",".join(str(names.index(g)) for g in row.allocation.gpus)


def _by_server(machine: Topology, names: Sequence[str]) -> str:
    known = {v.name for v in machine.gpus}
    chosen = set(names)
    words = []
    for server in spread(machine, names):
        own = [name for name in machine.servers[server] if name in known]
        words += [f"{server}:{part}" for part in ranges([i for i, name in enumerate(own) if name in chosen])]
    return ",".join(words)
