"""`collc plan`: packs trees and flows, proves the rate, and prints what limits it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction

import click

from collc.build.plans import SolutionCache
from collc.cli import report
from collc.cli.plan_classes import classes_json, classes_of, classes_text
from collc.cli.plan_expand import emit_expanded
from collc.cli.plan_losses import emit_survive, plan_losses, survive_text
from collc.cli.plan_sets import one_set, plan_sets, sets_json, sets_text
from collc.cli.plan_steps import lowered, parse_kind, steps_json, steps_text
from collc.cli.plan_text import explain_plans, further_links, summary, trade_json, trade_text
from collc.cli.report import debug_option, emit_json, json_option, progress
from collc.cli.sections import SectionedCommand
from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.packing import Plan, plan
from collc.packing.document import plan_file, to_json
from collc.packing.sets.allocations import Allocation
from collc.packing.sets.allocations import allocations as named_allocations
from collc.packing.sets.cluster_sets import only_gpus
from collc.packing.solve import ORBITS_FROM, SOLVERS
from collc.packing.solvers.effort import BUDGET_S, Limits
from collc.packing.solvers.trade import Trade, depth_trade
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph, Topology

_SHARE = re.compile(r"[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,2})?|\d{1,30}/\d{1,30}")


class _FractionType(click.ParamType[Fraction]):
    """An exact share: 0.05 or 1/20."""

    name = "share"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        try:
            # Long texts are not parsed: an integer such as 1e999999999 would take minutes to compute.
            share = Fraction(str(value)) if _SHARE.fullmatch(str(value)) else None
        except ZeroDivisionError:
            share = None
        if share is None:
            self.fail(f"{value!r} is not a share such as 0.05", param, ctx)
        if not 0 <= share < 1:
            self.fail(f"{value} is not between 0 and 1", param, ctx)
        return share


@click.command("plan", cls=SectionedCommand)
@click.argument("topology", metavar="TOPO")
@click.option("--collective", type=click.Choice([c.value for c in Collective]), help="[every collective]")
@click.option("--root", type=click.IntRange(min=0), help="Root rank of a rooted collective [0].")
@click.option("--gpus", metavar="LIST", help="The GPUs in rank order, such as 0,1,4,7 or server0:0-2 [all].")
@click.option("--links", metavar="CLASSES", help="Link classes to use instead of the fast one, or 'all'.")
@click.option(
    "--classes",
    metavar="CLASSES",
    help="Several classes of links in one call: nvlink, pcie (through host memory), net (NICs), or 'all'.",
)
@click.option("--relay", type=click.Choice(["idle"]), help="Let idle GPUs of the machine forward data.")
@click.option("--solver", type=click.Choice(SOLVERS), default="exact", show_default=True)
@click.option(
    "--tolerance", type=_FractionType(), default="0", help="Share of the rate that ilp may give up for fewer trees [0]."
)
@click.option(
    "--allocations",
    metavar="SETS",
    help="Plan many sets of GPUs, isomorphic ones once: connected (3 or more that the fast links join), all (2 or "
    "more), sizes such as 2..4, or sets such as 0,1,2/4,5.",
)
@click.option(
    "--free",
    metavar="LIST",
    help="With --allocations: only these GPUs are free, as in --gpus; the others take no part.",
)
@click.option(
    "--survive",
    type=click.IntRange(0, 1),
    default=0,
    show_default=True,
    help="1: also plan the machine after every single loss (link, NIC, rail, switch plane, GPU).",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    metavar="SECONDS",
    help=f"Work for each plan, in seconds of one 3 GHz core; it is counted, so every machine stops at the same plan "
    f"[{BUDGET_S}].",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    metavar="SECONDS",
    help="Search for each plan until this time has passed, by the clock.",
)
@click.option("--trade", is_flag=True, help="Print the best rate at each depth and how many trees it takes.")
@click.option(
    "--compare", type=click.Choice(["rings"]), help="Print the speedup over the best set of NCCL-style rings."
)
@click.option(
    "--expand",
    is_flag=False,
    flag_value="all",
    metavar="[RANK]",
    help=f"Write every tree as JSON, even of plans for more than {ORBITS_FROM} GPUs, which contain orbits of trees; "
    "with a rank, only its trees.",
)
@click.option("--orbits", is_flag=True, help=f"Write orbits of trees in --json, as for more than {ORBITS_FROM} GPUs.")
@click.option(
    "--steps",
    is_flag=False,
    flag_value="trees",
    metavar="[KIND]",
    help="Print the primitives that each rank runs, in order: of the packed trees, or of a ring, rings, "
    "chain, double-binary, one-hop or in-switch plan.",
)
@click.option("--proof", is_flag=True, help="Print every certificate whole: sets, links, prices.")
@json_option
@debug_option
def command(
    topology: str,
    collective: str | None,
    root: int | None,
    gpus: str | None,
    links: str | None,
    classes: str | None,
    relay: str | None,
    solver: str,
    tolerance: Fraction,
    allocations: str | None,
    free: str | None,
    survive: int,
    budget: float | None,
    time_limit: float | None,
    trade: bool,
    compare: str | None,
    expand: str | None,
    orbits: bool,
    steps: str | None,
    proof: bool,
    as_json: bool,
) -> None:
    """Pack spanning trees for TOPO, a file or a machine of `collc topologies`, and prove the rate."""
    kind = None if steps is None else parse_kind(steps)
    machine = load_topology(topology)
    chosen = None if gpus is None else parse_gpus(machine, gpus)
    _refuse_together(click.get_current_context().params)
    wanted = list(Collective) if collective is None else [Collective(collective)]
    if survive:
        packed = [c for c in wanted if collective is not None or c.uses_trees]
        states, held = plan_losses(machine, chosen, links, packed, solver)
        emit_survive(states, held) if as_json else report.text(survive_text(machine, states))
        return
    if allocations is not None or compare is not None:
        found = _sets(machine, allocations, free, chosen, links)
        sets = plan_sets(machine, found, wanted, solver)
        rings = compare is not None
        if as_json:
            emit_json(sets_json(machine, sets, rings=rings))
        else:
            report.text(sets_text(machine, sets, rings=rings))
        return
    if classes is not None:
        _require_root(wanted, root)
        over = classes_of(machine, chosen, classes, wanted, root)
        emit_json(classes_json(over)) if as_json else report.text(classes_text(machine, over))
        return
    graph = plan_graph(machine, chosen, links, relay is not None)
    if trade:
        rows = _trade(graph, collective, root)
        if as_json:
            emit_json({"format": "collc-trade/1", "rows": trade_json(rows)})
        else:
            report.text(trade_text(graph, rows))
        return
    only = _expanded_rank(expand, graph)
    _require_root(wanted, root)
    work = 1.0 if budget is None else budget / BUDGET_S
    plans = _plans(graph, wanted, root, solver, tolerance, orbits or graph.nranks > ORBITS_FROM, work, time_limit)
    if expand is not None:
        emit_expanded(graph, plans, only)
    elif kind is not None:
        made = lowered(graph, plans, kind)
        emit_json(steps_json(kind, made)) if as_json else report.text(steps_text(kind, made))
    elif as_json:
        emit_json(to_json(plan_file(graph, plans)))
    else:
        further = further_links(graph, plans)
        report.text(summary(graph, plans, further))
        if more := explain_plans(graph, plans, further, trees=collective is not None, proof=proof):
            report.text(more)


def _refuse_together(given: Mapping[str, object]) -> None:
    """Checks that the options do not exclude each other.

    Args:
        given: the values of all options, by parameter name.

    Raises:
        UsageError: two options exclude each other, or one needs another.
    """

    def uses(*names: str) -> bool:
        return any(given[name] not in (None, False, 0) for name in names)

    if uses("free") and not uses("allocations"):
        raise UsageError(
            "--free is about many sets of GPUs", where="--free", hint="use it with --allocations, or --gpus"
        )
    if uses("expand", "orbits") and uses("allocations", "compare", "trade"):
        raise UsageError("--expand and --orbits are about one plan", hint="omit --allocations, --compare and --trade")
    if uses("steps") and uses("allocations", "compare", "trade", "expand", "survive"):
        raise UsageError(
            "--steps is about one plan", hint="omit --allocations, --compare, --trade, --expand and --survive"
        )
    if uses("classes") and (
        uses("links", "relay", "allocations", "compare", "trade", "expand", "orbits", "steps", "survive", "proof")
        or given["solver"] != "exact"
    ):
        raise UsageError("--classes takes only --gpus, --collective and --root", hint="omit the other options")
    if uses("survive") and uses("relay", "allocations", "compare", "trade", "expand", "orbits") | (
        given["root"] is not None
    ):
        raise UsageError(
            "--survive takes only --gpus, --links, --collective and --solver", hint="omit the other options"
        )
    if uses("budget", "time_limit") and uses("allocations", "compare", "trade", "survive", "classes"):
        raise UsageError(
            "--budget and --time-limit are about one machine's plans",
            hint="omit --allocations, --compare, --trade, --survive and --classes",
        )
    if uses("budget") and uses("time_limit"):
        raise UsageError("--budget counts work and --time-limit reads a clock", hint="give one of them")
    if uses("allocations", "compare") and (uses("relay") or given["root"] is not None):
        raise UsageError("--allocations and --compare take neither --relay nor --root")
    if uses("allocations") and given["gpus"] is not None:
        raise UsageError("--allocations plans all sets of GPUs", hint="omit --gpus")


def _sets(
    machine: Topology, allocations: str | None, free: str | None, chosen: list[str] | None, links: str | None
) -> list[Allocation]:
    """Returns the sets of GPUs to plan, by --allocations; without it one set, for --compare."""
    if allocations is None:
        return one_set(machine, chosen or [v.name for v in machine.gpus], links)
    # The output counts the GPUs of the whole machine, like --gpus.
    left = machine if free is None else only_gpus(machine, parse_gpus(machine, free))
    return named_allocations(left, allocations, links)


def _expanded_rank(text: str | None, graph: PlanGraph) -> int | None:
    if text is None or text == "all":
        return None
    if not re.fullmatch(r"\d{1,9}", text) or int(text) >= graph.nranks:
        hint = f"give a rank of 0 to {graph.nranks - 1}, or --expand alone, after TOPO, for all trees"
        raise UsageError(f"{text[:40]!r} is not a rank of this graph", where="--expand", hint=hint)
    return int(text)


def _trade(graph: PlanGraph, collective: str | None, root: int | None) -> tuple[Trade, ...]:
    if collective is None:
        raise UsageError("--trade is about one collective", hint="name it with --collective")
    return depth_trade(graph, Collective(collective), root)


def _require_root(wanted: Sequence[Collective], root: int | None) -> None:
    """Raises UsageError if a root is given and none of the collectives is rooted."""
    if root is not None and not any(c.rooted for c in wanted):
        raise UsageError(f"{wanted[0].value} has no root", where="--root", hint="omit --root")


def _plans(
    graph: PlanGraph,
    wanted: Sequence[Collective],
    root: int | None,
    solver: str,
    tolerance: Fraction,
    orbits: bool,
    work: float,
    time_limit: float | None,
) -> tuple[Plan, ...]:
    show = progress("plan")
    made = []
    for item in wanted:
        show(item.value)
        limits = Limits(work, None if time_limit is None else time.monotonic() + time_limit)
        at = root if item.rooted else None
        made.append(plan(graph, item, at, solver, tolerance, SolutionCache(), orbits=orbits, limits=limits))
    show("")
    return tuple(made)
