"""`collc plan --classes`: plans several classes of links in one call, as text and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from collc.build.plans import SolutionCache
from collc.cli import report
from collc.cli.plan_text import counted, gbps, rate_in_words
from collc.cli.report import progress, table
from collc.collectives.model import Collective
from collc.errors import UsageError, first_few
from collc.packing.document import plan_file, to_json
from collc.packing.limit_text import link_name
from collc.packing.sets.classes import ClassPlan, ClassPlans, plan_classes
from collc.topology.canonical import fingerprint
from collc.topology.joint import usable_classes
from collc.topology.model import LinkKind, PlanGraph, Topology, VertexKind

MOST_GPUS = 128
_WIDTH = 118
_NAMED = 4
_LEGEND = """\
GB/s: 1e9 bytes of the call's buffer per second. A class's own trees use what faster classes leave (+). joint: the
best over all of these links together, proved; gain: of joint over the first class alone. `collc compile --classes`
makes libraries whose large calls several classes share (docs/classes.md)."""


def classes_of(
    machine: Topology,
    gpus: Sequence[str] | None,
    text: str,
    collectives: Sequence[Collective],
    root: int | None,
) -> list[ClassPlans]:
    """Returns plans over the classes of ``--classes TEXT``, one per collective.

    Raises:
        UsageError: a class does not exist, or there are too many GPUs.
    """
    classes, notes = usable_classes(machine, text)
    for note in notes:
        report.note(f"collc: {note}")
    ranks = len(machine.gpus) if gpus is None else len(gpus)
    if ranks > MOST_GPUS:
        problem = f"{ranks} GPUs are too many for a joint graph of classes"
        raise UsageError(problem, where="--classes", hint=f"choose up to {MOST_GPUS} with --gpus")
    show = progress("plan")
    found = []
    for collective in collectives:
        show(collective.value)
        mine = root if collective.rooted else None
        found.append(plan_classes(machine, gpus, classes, collective, mine, SolutionCache()))
    show("")
    return found


def classes_json(plans: Sequence[ClassPlans]) -> dict[str, Any]:
    """Returns the document of `collc plan --json` for the joint graph, where plans and trees also have classes."""
    graph = plans[0].graph
    document = to_json(plan_file(graph, tuple(p.joint for p in plans)))
    for written, made in zip(document["plans"], plans, strict=True):
        written["classes"] = [
            {"class": own.name, "rate_gbps": str(own.rate), "full_links": list(own.full)} for own in made.classes
        ]
        for tree, packed in zip(written.get("trees", ()), made.joint.trees, strict=False):
            tree["class"] = made.class_of_tree(packed)
    return document


def classes_text(machine: Topology, plans: Sequence[ClassPlans]) -> str:
    """Returns what each class adds, or why it adds nothing, and then a row per collective."""
    graph = plans[0].graph
    lines = [f"{graph.name}: {counted(graph.nranks, 'GPU')}; host memory: {_memory(machine, graph)}", ""]
    for made in plans:
        lines += textwrap.wrap(_in_words(made), _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    names = [own.name for own in plans[0].classes]
    header = ["collective", "root", *(name if i == 0 else f"+ {name}" for i, name in enumerate(names)), "joint", "gain"]
    lines += ["", table(header, [_row(made) for made in plans]), _LEGEND, f"Fingerprint: {fingerprint(graph)}"]
    return "\n".join(lines)


def _memory(machine: Topology, graph: PlanGraph) -> str:
    """Returns the known rates of the host memory that PCIe crosses."""
    speeds = {v.name: v.memory_gbps for v in machine.vertices if v.kind is VertexKind.CPU}
    used = sorted({v.name.removesuffix("+in") for v in graph.vertices if v.name.endswith("+in")} & speeds.keys())
    if not used or not any(link.kind in (LinkKind.PCIE, LinkKind.C2C) for link in graph.links):
        return "not used"
    known = [f"{name} {float(memory):g} GB/s" for name in used if (memory := speeds[name]) is not None]
    unknown = "taken as no limit (memory_gbps of a CPU says its speed)"
    return ", ".join(known) + (", others " + unknown if len(known) < len(used) else "") if known else unknown


def _in_words(made: ClassPlans) -> str:
    plan = made.joint
    text = rate_in_words(made.graph, plan, f" over {' and '.join(own.name for own in made.classes)}")
    if plan.rate is None:
        return text
    for own in made.classes:
        if not own.rate:
            text += f" {_nothing(made.graph, own)}"
    if made.mixed > 0:
        what = "trees" if plan.collective.uses_trees else "flows"
        text += f" {float(made.mixed):.5g} GB/s of it take {what} that change class on the way."
    return text


def _nothing(graph: PlanGraph, own: ClassPlan) -> str:
    """Returns why a class brings nothing by itself."""
    if not own.full:
        return f"{own.name} alone does not join these GPUs."
    shown = first_few([link_name(graph, link) for link in own.full], _NAMED)
    return f"{own.name} adds nothing: faster classes fill links that it shares with them ({shown})."


def _row(made: ClassPlans) -> list[str]:
    plan = made.joint
    root = "" if plan.root is None else str(plan.root)
    if plan.rate is None:
        return [plan.collective.value, root, *("-" for _ in made.classes), "-", "-"]
    first = next((own.rate for own in made.classes), Fraction(0))
    gain = f"{float(plan.rate / first - 1):+.1%}" if first else "-"
    return [plan.collective.value, root, *(gbps(own.rate) for own in made.classes), gbps(plan.rate), gain]
