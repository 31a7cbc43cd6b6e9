"""`collc plan --allocations connected` and `--compare rings`: plans many sets of GPUs of one machine."""

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
from collc.packing.candidates.ring_rates import MAX_GPUS, best_rings, ring_rate
from collc.packing.document import plan_file, to_json
from collc.packing.sets.allocations import Allocation
from collc.packing.sets.cluster_sets import spread
from collc.topology.canonical import fingerprint
from collc.topology.graph import FAST, plan_graph
from collc.topology.model import Topology

_COMPARED = (Collective.BROADCAST, Collective.ALL_GATHER, Collective.ALL_REDUCE)


@dataclass(frozen=True)
class SetPlans:
    """One allocation and its plans.

    Attributes:
        unit: the rate of one link of the machine, in GB/s.
    """

    allocation: Allocation
    plans: tuple[Plan, ...]
    unit: Fraction

    def rings(self) -> int | None:
        """Returns the most NCCL-style rings, counting each direction; None for more than MAX_GPUS GPUs."""
        if self.allocation.graph.nranks > MAX_GPUS:
            return None
        return best_rings(self.allocation.graph, self.unit)


def one_set(machine: Topology, gpus: Sequence[str], links: str | None) -> list[Allocation]:
    """Returns these GPUs as the only allocation."""
    graph = plan_graph(machine, gpus, links)
    return [Allocation(tuple(gpus), graph, fingerprint(graph))]


def plan_sets(
    machine: Topology, found: Sequence[Allocation], collectives: Sequence[Collective], solver: str
) -> list[SetPlans]:
    """Returns the plans of every allocation. A ring has the rate of the machine's slowest fast link."""
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
    """Returns sets by size, and sets of one size from the best to the worst.

    A set is better if it has the higher rate of the collective of `ranking`, and at equal rates on fewer servers.
    """

    def key(row: SetPlans) -> tuple[int, Fraction, int]:
        rates = {p.collective: p.rate or Fraction(0) for p in row.plans}
        rate = rates.get(ranking(row.plans), Fraction(0))
        return len(row.allocation.gpus), -rate, len(spread(machine, row.allocation.gpus))

    return sorted(rows, key=key)


def ranking(plans: Sequence[Plan]) -> Collective:
    """Returns the collective that ranks sets by its rate: all_reduce, or the first one without it."""
    held = [p.collective for p in plans]
    return Collective.ALL_REDUCE if Collective.ALL_REDUCE in held else held[0]


def _ring_unit(machine: Topology, found: Sequence[Allocation]) -> Fraction:
    """Returns the rate of one ring in GB/s.

    This is the rate of the machine's slowest link of a fast kind that the sets use; without such kinds, of the slowest
    link that they use. A set may use only double links, but NCCL's rings still use single links.
    """
    used = [x for a in found for x in a.graph.links]
    fast = {x.kind for x in used} & FAST
    widths = [x.gbps for x in machine.links if x.kind in fast] or [x.gbps for x in used]
    return min(widths, default=Fraction(1))


def speedups(row: SetPlans, rings: int | None) -> dict[Collective, Fraction]:
    """Returns rates divided by the rate of the best rings, for the collectives that Blink compares."""
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
    """Returns a row per allocation: rates in GB/s, and with `rings` the speedups over rings."""
    wanted = [p.collective for p in rows[0].plans] if rows else []
    header = ["GPUs", *(c.value for c in wanted)]
    compared = [c for c in _COMPARED if c in wanted] if rings else []
    if rings:
        header += ["ring count", *(f"x {c.value}" for c in compared)]
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
    units = "GB/s" + (", number of NCCL's rings, and times their rates" if rings else "")
    text = f"{machine.name}: {len(rows)} distinct allocations, {units}{order}\n" + table(header, lines)
    if rings and rows:
        means = ", ".join(
            f"{c.value} {math.exp(sum(map(math.log, g)) / len(g)):.2f} (largest {max(g):.2f})"
            for c, g in gains.items()
            if g
        )
        text += f"\ngeometric mean over rings: {means}" if means else ""
        text += f"\nring count: rings of one {compact(rows[0].unit)} GB/s link in one direction; 0: PCIe at half a link"
    return text


def _gpu_names(machine: Topology, row: SetPlans) -> str:
    """Returns GPUs in the form of --gpus: numbers in the machine, or in each server, such as ``node0:0-3,node7:1``."""
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
