"""Detects the kind of a file (topology, plan, library, program, dumps, trace, results) and makes its views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from collc.checker.library import check_library
from collc.checker.plans import FORMAT as PLAN_FORMAT
from collc.checker.plans import PlanFile, from_json, verify_document
from collc.checker.values import parse_json
from collc.collectives.model import Collective
from collc.errors import CertificateError, CollcError, UsageError
from collc.inputs import open_input, read_text
from collc.limits import limited
from collc.show.drawing import Drawing, around_graph, of_graph, of_topology
from collc.show.page import View, machine_data
from collc.show.plans import plan_view
from collc.show.programs import program_view, read_dumps, read_program
from collc.show.results import results_view
from collc.show.timeline import timeline_view
from collc.topology.load import load_topology
from collc.topology.model import Topology

MOST_INPUT = 256 << 20
# The most sets of GPUs that a page shows. A library may have plans for hundreds.
MOST_SETS = 64
_SHOWN = (
    "`collc show` takes a topology, and what plan --json, simulate --json or --trace, bench --json and compile wrote"
)


@dataclass(frozen=True)
class Input:
    """An input: its kind, and its contents in the field for this kind."""

    kind: str
    name: str
    topology: Topology | None = None
    plans: tuple[PlanFile, ...] = ()
    value: Any = None


def read_input_of(text: str) -> Input:
    """Returns the input of a file, a folder of dumps, or the name of a machine.

    Raises:
        CollcError: it cannot be shown. The message names it.
    """
    path = Path(text)
    if text and path.is_dir() and any(path.glob("*.ir")):
        return Input("program", path.name, value=read_dumps(path))
    if not text or not path.exists():
        return _topology(text)
    with open_input(path, limit=MOST_INPUT) as stream:
        magic = stream.read(4)
    if magic == b"\x7fELF":
        with limited(path):
            library = check_library(path)
        return Input("library", path.stem, plans=tuple(library.documents[:MOST_SETS]))
    content = read_text(path)
    if content.lstrip().startswith("{"):
        return _document(content, path)
    if any(line.strip().startswith("collc-ir/") for line in content.split("\n", 100)[:100]):
        return Input("program", path.stem, value=[read_program(content, path)])
    return _topology(text)


def _topology(text: str) -> Input:
    machine = load_topology(text)
    return Input("topology", machine.name, topology=machine)


def _document(text: str, path: Path) -> Input:
    def fail(what: str) -> NoReturn:
        raise CollcError(what, where=str(path), hint=_SHOWN)

    value = parse_json(text, fail)
    if not isinstance(value, dict):
        fail("is JSON, but no object")
    if value.get("format") == PLAN_FORMAT:
        document = from_json(value, str(path))
        try:
            verify_document(document)
        except CollcError as error:
            where = f"{path}: {error.where}" if error.where else str(path)
            raise CertificateError(error.what, where=where, hint=error.hint) from None
        return Input("plan", document.name, plans=(document,))
    if "traceEvents" in value:
        return Input("trace", path.stem, value=value)
    if "rows" in value:
        return Input("results", path.stem, value=value)
    if str(value.get("format")).startswith("collc-topology/"):
        return _topology(str(path))
    return fail("is JSON that no command of collc prints for `show`")


def views_of(found: Input, beside: Sequence[Input] = (), drawing: Drawing | None = None) -> list[View]:
    """Returns the views of an input.

    Args:
        beside: further results, plans or programs to compare with.
        drawing: the machine of the plans; None to draw only the graph of each plan.

    Raises:
        UsageError: the inputs cannot be compared.
    """
    for other in beside:
        if other.kind != found.kind or found.kind in ("topology", "library"):
            kind = f"a {other.kind} cannot be compared with a {found.kind}"
            raise UsageError(kind, where="--compare", hint="give two results, two plans or two programs")
    if found.kind == "results":
        return results_view([(each.name, each.value) for each in (found, *beside)])
    if found.kind == "trace":
        return [timeline_view(found.value, found.name)]
    if found.kind == "program":
        programs = [each for one in (found, *beside) for each in one.value]
        return [program_view(programs)]
    views = []
    if found.topology is not None:
        views.append(View("machine", "Machine", machine_data(of_topology(found.topology))))
    for document in found.plans:
        views.append(plan_page(document, drawing, _title(document, len(found.plans))))
    if beside:
        views.append(results_of_plans([found, *beside]))
        views += [plan_page(d, None, f"Plans of {other.name}") for other in beside for d in other.plans]
    return views


def results_of_plans(inputs: Sequence[Input]) -> View:
    """Returns the view of the rates of several plan files, as bars by collective."""
    rows = []
    for one in inputs:
        for made in one.plans[0].plans:
            root = "" if made.root is None else f" {one.plans[0].graph.vertices[made.root].name}"
            rate = None if made.rate is None else str(made.rate)
            rows.append({"collective": made.collective.value + root, "name": one.name, "rate_gbps": rate})
    names = [one.name for one in inputs]
    return View("results", "Comparison", {"plots": [], "rates": rows, "names": names, "table": []})


def _title(document: PlanFile, count: int) -> str:
    if count == 1:
        return "Plans"
    graph = document.graph
    names = " ".join(graph.vertices[r].name for r in graph.ranks)
    return f"{graph.nranks}: {names}" if len(names) <= 40 else f"{graph.nranks} GPUs, {document.fingerprint[:10]}"


def plan_page(document: PlanFile, drawing: Drawing | None, title: str = "Plans") -> View:
    """Returns the view of plans on a drawing that has all links of their graph (default: that graph)."""
    on = of_graph(document.graph) if drawing is None else drawing
    place = {(on.vertices[a].name, on.vertices[b].name, kind): i for i, (a, b, kind, _) in enumerate(on.links)}
    names = [v.name for v in document.graph.vertices]
    links = [place[names[x.src], names[x.dst], x.kind] for x in document.graph.links]
    return View("plan", title, {**machine_data(on), "plan": plan_view(document), "links": links, "first": True})


def plan_drawing(machine: Topology, document: PlanFile) -> Drawing:
    """Returns the drawing of the machine around a plan, for `plan_page`.

    If the graph has a link that the machine names differently, it is the drawing of the graph.
    """
    on = around_graph(machine, document.graph)
    have = {(on.vertices[a].name, on.vertices[b].name, kind) for a, b, kind, _ in on.links}
    names = [v.name for v in document.graph.vertices]
    whole = all((names[x.src], names[x.dst], x.kind) in have for x in document.graph.links)
    return on if whole else of_graph(document.graph)


def default_collectives(ngpus: int) -> list[Collective]:
    """Returns the collectives of `collc show TOPO` if none is named: all for a server, trees for a rack, else none."""
    if ngpus <= 16:
        return list(Collective)
    if ngpus <= 72:
        return [c for c in Collective if c.uses_trees]
    return []
