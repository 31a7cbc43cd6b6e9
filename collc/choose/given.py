"""Plans of the user's own in a library: read, checked like ours, and put in the place of packed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collc.checker.packing import check_packing
from collc.collectives.model import Collective
from collc.errors import CertificateError, UsageError
from collc.inputs import read_text
from collc.packing.candidates.plans import with_proof
from collc.packing.document import PlanFile, from_json, parse_plan, to_json
from collc.packing.model import Plan, PlanType
from collc.topology.model import PlanGraph

# `Plan.solver` of such a plan.
GIVEN = "given"


def read_given(given: Path | PlanFile) -> tuple[PlanFile, str]:
    """Returns the plans that the user gave, unchanged, and their name in messages (the file).

    Raises:
        CollcError: it is no plan file.
        OSError: it cannot be opened.
    """
    if isinstance(given, PlanFile):
        return from_json(to_json(given), "plans"), "plans"  # checked like the plans of a file, whatever made them
    return parse_plan(read_text(given), str(given)), str(given)


def given_plans(file: PlanFile, where: str, graph: PlanGraph, packed: Sequence[Plan]) -> tuple[Plan, ...]:
    """Returns the packed plans; a plan of the file replaces the packed plan of its collective and root.

    A plan of the file keeps its trees and rate. It takes bound and certificate from the packed plan, so the library
    also states how far the plan is below the best.

    Args:
        where: the name of the file.
        graph: the graph of the library, whose ranks and links the file must have.

    Raises:
        CertificateError: a plan in it does not hold.
        UsageError: it is for another graph, or has no plan of these.
    """
    _same(file.graph, graph, where)
    own: dict[tuple[Collective, int | None], Plan] = {}
    proofs = {(plan.collective, plan.root): plan for plan in packed}
    for number, plan in enumerate(file.plans):
        if not plan.collective.uses_trees:
            hint = "a library computes the routes of transfers itself"
            raise UsageError(
                f"plans[{number}] is of {plan.collective.value}, which has no trees", where=where, hint=hint
            )
        if not plan.trees and graph.nranks > 1:
            hint = "write every tree: `collc plan --expand --json`"
            raise UsageError(f"plans[{number}] has orbits in place of trees", where=where, hint=hint)
        if (plan.collective, plan.root) in own:
            raise UsageError(f"plans[{number}] is a second one of {_name(plan)}", where=where, hint="leave one of them")
        if (plan.collective, plan.root) not in proofs:
            hint = "leave --collective and --root out, or choose these too"
            raise UsageError(f"{_name(plan)} is not in the library", where=where, hint=hint)
        made = with_proof(replace(plan, kind=PlanType.TREES, solver=GIVEN), proofs[plan.collective, plan.root])
        try:
            # Own claims of a bound are checked; without them the packed plan's count.
            for claimed in (made,) if plan.certificate is None and plan.bound is None else (plan, made):
                check_packing(graph, claimed, where=f"plans[{number}]")
        except CertificateError as error:
            raise CertificateError(error.what, where=f"{where}: {error.where}", hint=error.hint) from None
        own[plan.collective, plan.root] = made
    if not own:
        raise UsageError("has no plans", where=where, hint="write some with `collc plan --json`")
    return tuple(own.get((plan.collective, plan.root), plan) for plan in packed)


def _name(plan: Plan) -> str:
    return plan.collective.value + ("" if plan.root is None else f" from root {plan.root}")


def _same(theirs: PlanGraph, ours: PlanGraph, where: str) -> None:
    """Refuses a file whose ranks or links are others; the name of the topology does not matter."""
    hint = "plan and compile with the same topology, --gpus and --links"
    for rank in range(max(theirs.nranks, ours.nranks)):
        names = [g.vertices[rank].name if rank < g.nranks else "nothing" for g in (theirs, ours)]
        if names[0] != names[1]:
            raise UsageError(f"rank {rank} is {names[0]} in the plan, {names[1]} here", where=where, hint=hint)
    if (theirs.vertices, theirs.links) != (ours.vertices, ours.links):
        raise UsageError("the links of the plan are not those of the topology", where=where, hint=hint)
