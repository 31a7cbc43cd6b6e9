"""`collc simulate --classes`: how a call is split over several classes of links, by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collc.choose.split import Split, split_by_size
from collc.cli import report
from collc.cli.plan_classes import classes_of
from collc.cli.plan_text import gbps
from collc.cli.report import emit_json, progress, table
from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.packing.sets.classes import ClassPlans
from collc.simulator.params import Machine
from collc.simulator.rows import simulated_row
from collc.topology.model import Topology

_UNJUDGED = """\
gain: over the first class alone. Shares end together in the model; PCIe and NICs beside NVLink were never compared with
a measurement (docs/classes.md)."""


def require_no_choice(given: Mapping[str, object]) -> None:
    """Raises UsageError where an option would choose what the split chooses; `given`: options by name."""
    if wrong := [name for name, value in given.items() if value is not None]:
        raise UsageError("--classes lets the model choose", where=wrong[0], hint=f"omit {wrong[0]} or --classes")


def simulate_classes(
    machine: Topology,
    gpus: Sequence[str] | None,
    classes: str,
    collectives: Sequence[Collective],
    root: int | None,
    sizes: Sequence[int],
    parameters: Machine,
    why: str,
    *,
    throughput: bool,
    as_json: bool,
) -> None:
    """Prints the split of every collective at every size.

    Raises:
        UsageError: a class, GPU or root does not exist.
    """
    found: list[tuple[ClassPlans, list[Split]]] = []
    for made in classes_of(machine, gpus, classes, collectives, root):
        show = progress("simulate")
        splits = split_by_size(made, parameters, sizes, throughput=throughput, status=show)
        show("")
        found.append((made, splits))
        if not as_json:
            report.text(f"{why if len(found) == 1 else ''}\n{_text(made, splits)}".lstrip("\n"))
    if as_json:
        emit_json({"rows": [row for made, splits in found for row in _rows(made, splits)], "parameters": why})
    else:
        report.text(_UNJUDGED)


def _text(plans: ClassPlans, splits: Sequence[Split]) -> str:
    """Returns a row per size: the time, the time with only the fastest class, and the share of each class."""
    joint = plans.joint
    bound = "nothing to move" if joint.bound is None else f"at most {gbps(joint.bound)} GB/s, proved"
    names = [own.name for own in plans.classes if own.plan is not None]
    rows = [
        [
            str(one.bytes),
            f"{one.time_us:.2f}",
            f"{one.alone_us:.2f}",
            f"{one.bytes / one.time_us / 1e3:.2f}",
            f"{one.gain:+.1%}",
            *(f"{one.shares.get(name, 0):.1%}" for name in names),
        ]
        for one in splits
    ]
    call = f"{joint.collective.with_root(joint.root)} on {plans.graph.name}"
    head = f"{call}: {plans.graph.nranks} ranks, simulated; {bound}"
    header = ["bytes", "time us", f"{names[0]} us" if names else "alone us", "algbw", "gain", *names]
    return f"{head}\n{table(header, rows)}"


def _rows(plans: ClassPlans, splits: Sequence[Split]) -> list[dict[str, Any]]:
    """Returns the rows of `collc simulate` with the share of each class."""
    call, nranks = plans.joint, plans.graph.nranks
    rows = []
    for one in splits:
        used = "+".join(name for name, share in one.shares.items() if share)
        row = simulated_row(call.collective, call.root, nranks, one.bytes, used, "model's choice", one.time_us)
        rows.append({**row, "shares": dict(one.shares), "alone_us": one.alone_us})
    return rows
