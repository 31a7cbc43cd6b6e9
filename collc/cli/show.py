"""`collc show`: pictures of machines, plans, times, programs and results."""

from __future__ import annotations

import re
import webbrowser
from dataclasses import replace
from pathlib import Path

import click

from collc.build.plans import SolutionCache
from collc.cli import report
from collc.cli.report import debug_option, emit_json, json_option, note, progress
from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.outputs import check_output, written_aside
from collc.packing import plan
from collc.packing.document import PlanFile, plan_file
from collc.show.page import FORMAT, View, page
from collc.show.read import Input, default_collectives, plan_drawing, read_input_of, views_of
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph

# From this many GPUs on a plan's trees are orbits: one of each kind, with how many are alike.
_ORBITS_FROM = 72


@click.command("show")
@click.argument("thing", metavar="INPUT")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The page to write [NAME.html here].")
@click.option("--open", "opened", is_flag=True, help="Open the page in the browser.")
@click.option("--gpus", metavar="LIST", help="Of a topology: plans for these GPUs in rank order, such as 0,1,4,7.")
@click.option("--links", metavar="CLASSES", help="Of a topology: link classes of its plans, or 'all'.")
@click.option(
    "--collective",
    "collectives",
    multiple=True,
    type=click.Choice([c.value for c in Collective]),
    help="Of a topology: plan this. Repeatable [all; trees above 16 GPUs; none above 72].",
)
@click.option("--root", type=click.IntRange(min=0), help="Root rank of rooted collectives [0].")
@click.option(
    "--compare",
    "others",
    multiple=True,
    metavar="FILE",
    help="Results, a plan or a program to show beside INPUT's. Repeatable.",
)
@json_option
@debug_option
def command(
    thing: str,
    output: Path | None,
    opened: bool,
    gpus: str | None,
    links: str | None,
    collectives: tuple[str, ...],
    root: int | None,
    others: tuple[str, ...],
    as_json: bool,
) -> None:
    """Draw INPUT as one HTML page that needs no network.

    INPUT is a topology (a file or a machine of `collc topologies`), a library, an IR text, a folder of dumped passes,
    or what `plan --json`, `simulate --json`, `simulate --trace` or `bench --json` printed.
    """
    if output is not None and as_json:
        raise UsageError("--json prints what the page would show", where="--output", hint="give one of the two")
    if output is not None:
        check_output(output)
    found = read_input_of(thing)
    if found.topology is None and (gpus is not None or links is not None or collectives or root is not None):
        raise UsageError("--gpus, --links, --collective and --root are about a topology", where=thing, hint="omit them")
    beside = [read_input_of(other) for other in others]
    views = views_of(found, beside)
    document = _planned(found, gpus, links, [Collective(c) for c in collectives], root)
    if document is not None:
        assert found.topology is not None
        drawing = plan_drawing(found.topology, document)
        views += views_of(replace(found, topology=None, plans=(document,)), drawing=drawing)
    if as_json:
        emit_json({"format": FORMAT, "title": found.name, "views": [view.to_json() for view in views]})
        return
    _write(output or Path(f"{_file_name(found.name)}.html"), found.name, views, opened)


def _planned(
    found: Input, gpus: str | None, links: str | None, wanted: list[Collective], root: int | None
) -> PlanFile | None:
    """The plans of a topology; None where there are none to show."""
    machine = found.topology
    if machine is None:
        return None
    chosen = None if gpus is None else parse_gpus(machine, gpus)
    wanted = wanted or default_collectives(len(machine.gpus) if chosen is None else len(chosen))
    if root is not None and not any(c.rooted for c in wanted):
        raise UsageError("none of the collectives has a root", where="--root", hint="omit --root")
    if not wanted or not machine.gpus:
        return None
    graph = plan_graph(machine, chosen, links)
    show = progress("plan")
    made = []
    for item in wanted:
        show(item.value)
        orbits = graph.nranks > _ORBITS_FROM and item.uses_trees
        made.append(plan(graph, item, root if item.rooted else None, "exact", store=SolutionCache(), orbits=orbits))
    show("")
    return plan_file(graph, tuple(made))


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "collc-show"


def _write(path: Path, title: str, views: list[View], opened: bool) -> None:
    check_output(path)
    text = page(title, views)
    with written_aside(path, 0o644) as aside:
        aside.write_text(text, encoding="utf-8")
    report.line(f"wrote {path}: {len(text) / 1e6:.2f} MB")
    if opened and not webbrowser.open(path.resolve().as_uri()):
        note(f"no browser could be started: open {path} in one")
