"""`collc show`: draws machines, plans, times, programs and results."""

from __future__ import annotations

import re
import webbrowser
from dataclasses import dataclass, replace
from pathlib import Path

import click

from collc.build.plans import SolutionCache
from collc.cli import report
from collc.cli.report import SIZE, debug_option, emit_json, json_option, note, progress
from collc.cli.sections import SectionedCommand
from collc.collectives.model import COMPILED, Collective
from collc.errors import UsageError
from collc.outputs import check_output, written_aside
from collc.packing import plan
from collc.packing.document import PlanFile, plan_file
from collc.show.drawing import Drawing, of_graph, of_topology
from collc.show.page import FORMAT, View, page
from collc.show.read import Input, default_collectives, plan_drawing, read_input_of, views_of
from collc.show.simulated import simulated_view
from collc.show.static import draw_machine, draw_plan, draw_results, draw_times
from collc.show.terminal import machine_text, plans_text
from collc.simulator.plot import check_plot
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.model import PlanGraph

# Plans for more GPUs have orbits: one tree of each orbit, with the number of its images.
_ORBITS_FROM = 72
_FIGURE = click.Path(path_type=Path)


@dataclass(frozen=True)
class _Shown:
    """The contents of a page.

    Attributes:
        found: the input.
        document: the plans of a topology, or of the input.
        drawing: the drawing of a topology's plans.
        views: all views of the page.
    """

    found: Input
    document: PlanFile | None
    drawing: Drawing | None
    views: list[View]


@click.command("show", cls=SectionedCommand)
@click.argument("thing", metavar="INPUT")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The page to write [NAME.html here].")
@click.option("--open", "opened", is_flag=True, help="Open the page in the browser.")
@click.option("--text", "as_text", is_flag=True, help="Draw in the terminal instead of a page.")
@click.option("--svg", type=_FIGURE, metavar="FILE", help="Write one view as a figure instead of a page.")
@click.option("--png", type=_FIGURE, metavar="FILE", help="The same as PNG.")
@click.option("--pdf", type=_FIGURE, metavar="FILE", help="The same as PDF.")
@click.option("--tree", type=click.IntRange(min=1), help="With a figure: this tree of the first plan alone.")
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
    "--time", "size", type=SIZE, metavar="SIZE", help="Of a topology: simulate a call of SIZE bytes, step by step."
)
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
    as_text: bool,
    svg: Path | None,
    png: Path | None,
    pdf: Path | None,
    tree: int | None,
    gpus: str | None,
    links: str | None,
    collectives: tuple[str, ...],
    root: int | None,
    size: int | None,
    others: tuple[str, ...],
    as_json: bool,
) -> None:
    """Draw INPUT as one HTML page that needs no network, or as a figure or text.

    INPUT is a topology (a file or a machine of `collc topologies`), a library, an IR text, a folder of dumped passes,
    or what `plan --json`, `simulate --json`, `simulate --trace` or `bench --json` printed.

    A figure shows the machine of a topology; with --gpus, --collective or --tree, and of a plan, the first plan; with
    --time the steps; of results their plots.
    """
    figures = [(path, suffix) for path, suffix in ((svg, ".svg"), (png, ".png"), (pdf, ".pdf")) if path is not None]
    _check_outputs(output, figures, as_text, as_json, opened)
    if tree is not None and not figures:
        raise UsageError("--tree is about figures", where="--tree", hint="add --svg, --png or --pdf")
    found = read_input_of(thing)
    chosen = (gpus, links, collectives or None, root, size)
    if found.topology is None and any(value is not None for value in chosen):
        hint = "omit --gpus, --links, --collective, --root and --time"
        raise UsageError("these options are about a topology", where=thing, hint=hint)
    beside = [read_input_of(other) for other in others]
    wanted = [Collective(c) for c in collectives]
    if figures and not wanted and (gpus is not None or tree is not None):
        wanted = [Collective.ALL_REDUCE]
    plain = bool(figures) and not wanted and gpus is None
    shown = _gather(found, beside, gpus, links, [] if plain else wanted, root, size, plans=not plain)
    if figures:
        for path, suffix in figures:
            _draw(shown, path, suffix, tree)
        return
    if as_text:
        report.text(_text(shown))
        return
    if as_json:
        emit_json({"format": FORMAT, "title": found.name, "views": [view.to_json() for view in shown.views]})
        return
    _write(output or Path(f"{_file_name(found.name)}.html"), found.name, shown.views, opened)


def _check_outputs(
    output: Path | None, figures: list[tuple[Path, str]], as_text: bool, as_json: bool, opened: bool
) -> None:
    given = (("--output", output), ("--text", as_text), ("--json", as_json), ("--svg, --png, --pdf", figures))
    kinds = [name for name, value in given if value]
    if len(kinds) > 1:
        raise UsageError(f"{' and '.join(kinds)} are different outputs", hint="give one of them")
    if opened and kinds not in ([], ["--output"]):
        raise UsageError("--open opens the page", where="--open", hint=f"omit it or {kinds[0]}")
    if output is not None:
        check_output(output)
    for path, suffix in figures:
        if path.suffix != suffix:
            raise UsageError(f"{path} does not end in {suffix}", where=f"--{suffix[1:]}", hint="name the file so")
        check_output(path, replaced=False)
        check_plot(path)


def _gather(
    found: Input,
    beside: list[Input],
    gpus: str | None,
    links: str | None,
    wanted: list[Collective],
    root: int | None,
    size: int | None,
    *,
    plans: bool,
) -> _Shown:
    """Returns everything that the page shows.

    Args:
        beside: the inputs of --compare.
        plans: also plan collectives by default, if none is given.

    Raises:
        UsageError: a root is given and no collective is rooted, or the collective cannot be simulated.
    """
    views = views_of(found, beside)
    machine = found.topology
    if machine is None:
        return _Shown(found, found.plans[0] if found.plans else None, None, views)
    chosen = None if gpus is None else parse_gpus(machine, gpus)
    timed = wanted[0] if wanted else Collective.ALL_REDUCE
    if not wanted and plans:
        wanted = default_collectives(len(machine.gpus) if chosen is None else len(chosen))
    if root is not None and not any(c.rooted for c in [*wanted, timed]):
        raise UsageError("none of the collectives has a root", where="--root", hint="omit --root")
    if not machine.gpus or not (wanted or size is not None):
        return _Shown(found, None, None, views)
    graph = plan_graph(machine, chosen, links)
    document, drawing = None, None
    if wanted:
        document = _planned(graph, wanted, root)
        drawing = plan_drawing(machine, document)
        views += views_of(replace(found, topology=None, plans=(document,)), drawing=drawing)
    if size is not None:
        if timed not in COMPILED:
            raise UsageError(f"{timed.value} is not simulated", where="--time", hint="choose another --collective")
        views.append(simulated_view(graph, timed, root if timed.rooted else None, size))
    return _Shown(found, document, drawing, views)


def _planned(graph: PlanGraph, wanted: list[Collective], root: int | None) -> PlanFile:
    show = progress("plan")
    made = []
    for item in wanted:
        show(item.value)
        orbits = graph.nranks > _ORBITS_FROM and item.uses_trees
        made.append(plan(graph, item, root if item.rooted else None, "exact", store=SolutionCache(), orbits=orbits))
    show("")
    return plan_file(graph, tuple(made))


def _draw(shown: _Shown, path: Path, suffix: str, tree: int | None) -> None:
    """Draws a figure: the times, the plan, the machine, or the results, whichever exists first.

    Args:
        suffix: the format, such as ".svg".
        tree: the number of the only tree to draw, from 1; None for all.

    Raises:
        UsageError: the input has no figure, or no tree.
    """
    by_kind = {view.kind: view for view in shown.views}
    if tree is not None and shown.document is None:
        raise UsageError("there is no plan with trees to draw", where="--tree", hint="give a topology or a plan")
    if "timeline" in by_kind and tree is None:
        view = by_kind["timeline"]
        draw_times(path, view, str(view.data.get("words") or shown.found.name))
    elif shown.document is not None:
        drawing = shown.drawing or of_graph(shown.document.graph)
        draw_plan(path, drawing, shown.document, None if tree is None else tree - 1)
    elif shown.found.topology is not None:
        draw_machine(path, of_topology(shown.found.topology))
    elif "results" in by_kind:
        draw_results(path, by_kind["results"], shown.found.name)
    else:
        hint = "--text prints it, and a page shows it"
        raise UsageError(f"a {shown.found.kind} is no figure", where=f"--{suffix[1:]}", hint=hint)
    report.line(f"wrote {path}")


def _text(shown: _Shown) -> str:
    parts = []
    if shown.found.topology is not None:
        parts.append(machine_text(of_topology(shown.found.topology)))
    documents = (shown.document,) if shown.document is not None and shown.found.topology else shown.found.plans
    parts += [plans_text(document) for document in documents if document is not None]
    if not parts:
        hint = "a page shows it; text shows topologies, plans and libraries"
        raise UsageError(f"a {shown.found.kind} is not drawn as text", where="--text", hint=hint)
    return "\n\n".join(parts)


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
