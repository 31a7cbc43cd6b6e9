"""`collc.plan`: packs the best trees or flows of one collective, with the proof."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

from collc.api.arguments import a_collective, a_number, a_share, answering, one_of, wrong
from collc.api.machines import a_graph
from collc.build.plans import SolutionCache
from collc.checker.packing import check_packing
from collc.collectives.model import Collective
from collc.errors import CollcError, UsageError
from collc.packing.document import PlanFile, from_json, plan_file, to_json
from collc.packing.explain import link_loads, plan_depth
from collc.packing.limit_text import limit_in_words
from collc.packing.model import Flow, Plan, Tree
from collc.packing.solve import ORBITS_FROM, SOLVERS
from collc.packing.solve import plan as packed_plan
from collc.topology.model import PlanGraph, Topology


@dataclass(frozen=True)
class Planned:
    """A plan and its graph.

    A result of `collc.plan` has been checked against the graph. Functions that take a plan check a copy that
    `dataclasses.replace` made.

    Args:
        graph: the GPUs in rank order, the forwarders, and their links.
        plan: the trees or flows with exact weights, and the certificate of the bound.

    Raises:
        CollcError: `graph` or `plan` is of another type.
    """

    graph: PlanGraph
    plan: Plan

    # True if the plan has been checked. It is no field, so copies by `dataclasses.replace` are unchecked.
    _checked: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, value, kind in (("graph", self.graph, PlanGraph), ("plan", self.plan, Plan)):
            if not isinstance(value, kind):
                wrong(name, value, f"a {kind.__name__}, as in what collc.plan returned")

    @property
    def collective(self) -> Collective:
        """The collective. `collective.value` is its name in nccl-tests."""
        return self.plan.collective

    @property
    def root(self) -> int | None:
        """The root rank of a rooted collective; else None."""
        return self.plan.root

    @property
    def rate(self) -> Fraction | None:
        """The exact rate in GB/s (1e9 bytes per second) of the buffer; None for a single GPU, which moves nothing."""
        return self.plan.rate

    @property
    def bound(self) -> Fraction | None:
        """The GB/s that no schedule of this kind exceeds, as the certificate proves; None for a single GPU."""
        return self.plan.bound

    @property
    def optimal(self) -> bool:
        """True if the rate equals the bound."""
        return self.plan.optimal

    @property
    def trees(self) -> tuple[Tree, ...]:
        """The trees; empty for collectives with flows. For more than 1,024 GPUs they are in `plan.orbits`."""
        return self.plan.trees

    @property
    def flows(self) -> tuple[Flow, ...]:
        """The flows of gather, scatter, alltoall and sendrecv; empty for others."""
        return self.plan.flows

    @property
    def depth(self) -> int:
        """The most hops from a root to a GPU; for flows the most links on a path."""
        return plan_depth(self.plan)

    @property
    def limit(self) -> str:
        """A text about the GPUs and links that limit the rate; empty for a single GPU."""
        return limit_in_words(self.graph, self.plan) if self.plan.certificate else ""

    @property
    def loads(self) -> tuple[Fraction, ...]:
        """The GB/s on each link of the graph, by its id, while the collective runs at the rate."""
        return tuple(link_loads(self.graph, self.plan))

    def to_json(self) -> dict[str, Any]:
        """Returns the document of `collc plan --json`, format collc-plan/1, which `collc verify` checks.

        Raises:
            CollcError: a changed plan has parts of wrong types, or names ranks or links that do not exist.
        """
        return document((self,), "plan")

    def __str__(self) -> str:
        head = (
            f"{self.collective.value} on {self.graph.nranks} GPU{'s' * (self.graph.nranks != 1)} of {self.graph.name}"
        )
        if self.rate is None:
            return f"{head}: one GPU alone moves nothing"
        proof = (
            "optimal" if self.optimal else f"at most {self.bound} is possible" if self.bound else "no bound is known"
        )
        rate = f"{self.rate}" if self.rate.denominator == 1 else f"{self.rate} = {float(self.rate):.4g}"
        number, kind = (self.plan.tree_count, "tree") if self.collective.uses_trees else (len(self.flows), "flow")
        return f"{head}: {rate} GB/s, {proof}; {number} {kind}{'s' * (number != 1)}, depth {self.depth}"


@answering
def plan(
    topology: Topology | str | os.PathLike[str],
    collective: Collective | str = "all_reduce",
    *,
    root: int | None = None,
    gpus: str | Sequence[int | str] | None = None,
    links: str | Sequence[str] | None = None,
    relay: bool = False,
    solver: str = "exact",
    tolerance: Fraction | str | int = 0,
) -> Planned:
    """Packs one collective onto the links between some GPUs, and proves a bound on the rate.

    Args:
        topology: a result or an argument of `collc.load`.
        collective: all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, alltoall or sendrecv.
        root: the root rank of broadcast, reduce, gather and scatter [0].
        gpus: the GPUs in rank order, as ``[0, 1, 4, 7]``, ``"0,1,4,7"`` or ``"server0:0-2,server1:0-4"`` [all].
        links: classes of links to use, as ``["nvlink", "pcie"]`` or ``"all"`` [the fast ones].
        relay: GPUs of the machine that are not in `gpus` forward data.
        solver: exact; ilp, which finds the fewest trees; or mwu, which approximates.
        tolerance: the fraction of the rate that ilp may give up for fewer trees.

    Raises:
        CollcError: an argument is wrong, the links do not join the GPUs, or a solver failed.
    """
    wanted = a_collective("collective", collective)
    chosen = None if root is None else a_number("root", root, 0, 10**9)
    one_of("solver", solver, SOLVERS)
    share = a_share("tolerance", tolerance)
    _, graph = a_graph(topology, gpus, links, relay)
    orbits = graph.nranks > ORBITS_FROM
    made = Planned(graph, packed_plan(graph, wanted, chosen, solver, share, SolutionCache(), orbits=orbits))
    object.__setattr__(made, "_checked", True)
    return made


def document(found: Sequence[Planned], where: str) -> dict[str, Any]:
    """Returns plans for one graph as JSON values.

    Raises:
        UsageError: some part has a wrong type, or names a rank or link that the graph does not have.
    """
    try:
        return to_json(plan_file(found[0].graph, tuple(one.plan for one in found)))
    except CollcError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Users may build plans from parts of any type, so other errors can occur anywhere.
        hint = "change what collc.plan returned by dataclasses.replace, each part into one of its own type"
        raise UsageError("some part of it is none of a plan for this graph", where=where, hint=hint) from error


def read_again(found: Sequence[Planned], where: str) -> PlanFile:
    """Returns plans for one graph, checked as strictly as plans of a file."""
    return from_json(document(found, where), where)


def require_sound(planned: Planned, where: str) -> None:
    """Checks trees, loads and claims of a plan that the user may have changed. It may have no bound.

    Raises:
        CollcError: a claim does not hold.
    """
    if planned._checked:
        return
    (plan,) = read_again((planned,), where).plans
    if plan.bound is None and plan.certificate is None and plan.rate is not None and planned.graph.nranks > 1:
        best = packed_plan(planned.graph, plan.collective, plan.root, "exact", Fraction(0), SolutionCache())
        plan = replace(plan, bound=best.bound, certificate=best.certificate)
    check_packing(planned.graph, plan, where)
