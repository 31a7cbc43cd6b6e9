"""`collc plan --survive 1`: plans a machine, and its remains after every single loss."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from collc.build.plans import SolutionCache
from collc.cli import report
from collc.cli.losses import losses_json, losses_text
from collc.cli.plan_expand import document_pieces
from collc.cli.report import progress
from collc.collectives.model import Collective
from collc.packing import plan
from collc.packing.document import PlanFile, plan_file
from collc.packing.sets.losses import Row, after_losses
from collc.packing.solve import ORBITS_FROM
from collc.topology.canonical import fingerprint
from collc.topology.model import Topology


def plan_losses(
    machine: Topology, gpus: Sequence[str] | None, links: str | None, collectives: Sequence[Collective], solver: str
) -> tuple[list[Row], dict[str, PlanFile]]:
    """Returns a row per state of the machine, and the plans by fingerprint of the graph. Equal graphs have one plan."""
    every = after_losses(machine, gpus, links)
    show = progress("plan")
    rows: list[Row] = []
    plans: dict[str, PlanFile] = {}
    for i, one in enumerate(every):
        show(f"{i + 1} of {len(every)}: without {one.loss.what}" if one.loss else f"1 of {len(every)}")
        if not one.graphs:
            assert one.loss is not None
            rows.append(Row.without_plan(one.loss, one.why))
            continue
        name = fingerprint(one.graphs[0])
        if name not in plans:
            graph, large = one.graphs[0], one.graphs[0].nranks > ORBITS_FROM
            made = tuple(plan(graph, c, None, solver, store=SolutionCache(), orbits=large) for c in collectives)
            plans[name] = plan_file(graph, made)
        rows.append(Row.of(one.loss, len(one.gpus), name, plans[name].plans))
    show("")
    return rows, plans


def survive_text(machine: Topology, rows: Sequence[Row]) -> str:
    """Returns the table of rates, before and after each loss."""
    return f"{machine.name}: every single loss, equivalent ones once\n" + losses_text(rows, "from rank 0")


def emit_survive(rows: Sequence[Row], plans: Mapping[str, PlanFile]) -> None:
    """Prints the rows, and the plan document of every graph by its fingerprint, as JSON."""
    for piece in _pieces(rows, plans):
        report.raw_json(piece)


def _pieces(rows: Sequence[Row], plans: Mapping[str, PlanFile]) -> Iterator[str]:
    yield json.dumps({"format": "collc-survive/1", "losses": losses_json(rows)}, indent=2)[:-2] + ',\n  "plans": {'
    for i, (name, file) in enumerate(plans.items()):
        yield ("," if i else "") + f"\n{json.dumps(name)}: "
        yield from document_pieces(file)
    yield "}}\n"
