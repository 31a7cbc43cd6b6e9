"""Lists the graphs that a library needs to serve its whole machine and the machine after each loss (`--survive 1`).

Of each orbit of losses under the machine's symmetry one loss is planned, for the GPUs that are left. States with equal
graphs share a plan: the whole DGX-1V and its losses need 9 graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import TopologyError, UsageError
from collc.packing.model import Plan
from collc.packing.sets.allocations import Allocation, allocations
from collc.packing.sets.gpu_sets import GpuSet, GpuSets, MachineState, found_sets, gpu_classes
from collc.topology.canonical import fingerprint, match
from collc.topology.graph import plan_graph
from collc.topology.losses import Loss, single_losses, survivors, used_part, without
from collc.topology.model import LinkKind, LossKind, PlanGraph, Topology

# The largest number in a table of the library.
_MAX_NUMBER = (1 << 64) - 1
MOST_VERTICES = 1024  # kMaxVertices of templates/runtime/plan/match_machine.cpp


@dataclass(frozen=True)
class LossState:
    """A machine after a loss.

    Attributes:
        loss: None for the whole machine.
        gpus: the requested GPUs that are left.
        graphs: the graphs of their plans; empty if the loss cuts a GPU off.
        why: the reason if there are no graphs, which names such a GPU.
    """

    loss: Loss | None
    topology: Topology
    gpus: tuple[str, ...]
    graphs: tuple[PlanGraph, ...]
    why: str = ""


@dataclass(frozen=True)
class Row:
    """The rates in one state of a machine.

    Attributes:
        what: the name of the lost part, or ``nothing``.
        kind: the kind of the loss; None if nothing is lost or the kind is unknown.
        alike: the number of equivalent losses that the row represents; 0 if unknown.
        nranks: the number of GPUs that are left.
        fingerprint: the fingerprint of the plans' graph.
        rates: the rate of each collective in GB/s; for a rooted collective, the rate of the slowest root.
        allocation: the number of the graph in a library.
        why: the reason why there are no rates, which names a GPU that the loss cuts off.
        proved: True if every rate equals its bound.
    """

    what: str
    kind: LossKind | None
    alike: int
    nranks: int
    fingerprint: str
    rates: dict[Collective, Fraction]
    allocation: int | None = None
    why: str = ""
    proved: bool = True

    @classmethod
    def of(
        cls, loss: Loss | None, nranks: int, fingerprint: str, plans: Sequence[Plan], allocation: int | None = None
    ) -> Row:
        """Returns the row of a state that has plans."""
        packed = packed_plans(plans)
        proved = all(plan.optimal for plan in packed)
        what, kind, alike = ("nothing", None, 1) if loss is None else (loss.what, loss.kind, loss.alike)
        return cls(what, kind, alike, nranks, fingerprint, slowest_rates(packed), allocation, proved=proved)

    @classmethod
    def without_plan(cls, loss: Loss, why: str) -> Row:
        """Returns the row of a loss that cuts a GPU off."""
        return cls(loss.what, loss.kind, loss.alike, 0, "", {}, why=why)


def packed_plans(plans: Iterable[Plan]) -> list[Plan]:
    """Returns the plans of packed trees or flows, without the candidates that a library also has for small messages."""
    return [plan for plan in plans if plan.kind == "trees"]


def slowest_rates(plans: Iterable[Plan]) -> dict[Collective, Fraction]:
    """Returns for each collective the rate of its slowest root in GB/s."""
    found: dict[Collective, Fraction] = {}
    for plan in plans:
        if plan.rate is not None:
            found[plan.collective] = min(plan.rate, found.get(plan.collective, plan.rate))
    return found


def after_losses(
    topology: Topology, gpus: Sequence[str] | None = None, links: str | None = None, text: str | None = None
) -> list[LossState]:
    """Returns the whole machine, then the machine after each loss. Equivalent losses are listed once.

    A lost link counts only if a plan uses links of its kind, on the whole machine or after a loss.

    Args:
        gpus: the GPUs in rank order (default: all).
        links: as in ``--links``.
        text: sets of GPUs as in ``--allocations``, instead of `gpus`.

    Raises:
        TopologyError, UsageError: some GPUs cannot be reached on the whole machine, or there are no such sets.
    """
    chosen = tuple(v.name for v in topology.gpus) if gpus is None else tuple(gpus)
    whole = LossState(None, topology, chosen, _graphs(topology, chosen, links, text))
    kinds = {link.kind for graph in whole.graphs for link in graph.links}
    while True:
        found = [
            whole,
            *(_lose(topology, loss, chosen, links, text) for loss in single_losses(topology, kinds, chosen)),
        ]
        used = {link.kind for one in found for graph in one.graphs for link in graph.links}
        if used <= kinds:
            return found
        kinds |= used


def _lose(topology: Topology, loss: Loss, chosen: Sequence[str], links: str | None, text: str | None) -> LossState:
    left, machine = survivors(chosen, loss), without(topology, loss)
    try:
        return LossState(loss, machine, left, _graphs(machine, left, links, text))
    except (TopologyError, UsageError) as error:
        return LossState(loss, machine, left, (), error.what)


def _graphs(topology: Topology, gpus: Sequence[str], links: str | None, text: str | None) -> tuple[PlanGraph, ...]:
    if text is None:
        return (plan_graph(topology, gpus, links),)
    return tuple(allocation.graph for allocation in allocations(topology, text, links))


def surviving_sets(
    topology: Topology, gpus: Sequence[str] | None, text: str | None, links: str | None
) -> tuple[list[PlanGraph], GpuSets]:
    """Returns the graphs of a library that survives each single loss, and the sets of GPUs of each state.

    Args:
        gpus: the only set, in rank order (default: all). After a loss it has the GPUs that are left.
        text: the sets of each state as in ``--allocations``: connected, all or sizes. Excludes `gpus`.
        links: as in ``--links``.

    Raises:
        UsageError: `text` names sets, or the machine has too many vertices or speeds with too many digits.
        TopologyError: some GPUs cannot be reached on the whole machine.
    """
    if text is not None and text not in ("connected", "all") and ".." not in text:
        raise UsageError("sets by name may hold the GPU that is lost", where=f"--allocations {text}",
                         hint="with --survive: connected, all, or sizes such as 3..8")  # fmt: skip
    check_size(topology.name, len(topology.gpus))  # first, because the losses of thousands of GPUs take long
    every = after_losses(topology, gpus, links, text)
    distinct: dict[str, PlanGraph] = {}
    for one in every:
        for graph in one.graphs:
            distinct.setdefault(fingerprint(graph), graph)
    graphs, known = list(distinct.values()), {name: number for number, name in enumerate(distinct)}
    kinds = {link.kind for graph in graphs for link in graph.links}
    states: list[MachineState] = []
    sets: list[GpuSet] = []
    for one in every:
        if one.graphs:
            if text is None:
                classes, state_sets = _only_set(one, graphs, known)
            else:
                classes, state_sets = _all_sets(one, distinct, known, links, kinds)
            states.append(MachineState(one.loss, classes, len(state_sets)))
            sets += state_sets
    fallen = tuple((one.loss, one.why) for one in every if not one.graphs and one.loss is not None)
    # At creation, a communicator compares only the part of the machine that plans can use.
    part = used_part(topology, kinds)
    check_size(part.name, len(part.vertices))
    _check_speeds(part, states)
    return graphs, GpuSets(part, states[0].classes, tuple(sets), tuple(states), fallen)


def _only_set(
    one: LossState, graphs: Sequence[PlanGraph], known: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[GpuSet, ...]]:
    """Returns the class of each GPU and the single set of a state.

    If the plan is for the graph of this state, rank i is the i-th GPU that is left. If it is for an isomorphic graph,
    ranks follow the isomorphism.
    """
    names = [v.name for v in one.topology.gpus]
    (graph,) = one.graphs
    number = known[fingerprint(graph)]
    mapping = match(graphs[number], graph)
    assert mapping is not None, "two different graphs share a fingerprint"
    if graphs[number] == graph:
        mapping = tuple(range(len(graph.vertices)))
    rank_of = {graph.vertices[mapping[rank]].name: rank for rank in graph.ranks}
    order = sorted(rank_of, key=names.index)
    forwarders = tuple(graph.vertices[mapping[v]].name for v in graph.forwarders)
    only = GpuSet(tuple(map(names.index, order)), number, tuple(rank_of[name] for name in order), forwarders)
    return tuple(range(len(names))), (only,)


def _all_sets(
    one: LossState, distinct: Mapping[str, PlanGraph], known: Mapping[str, int], links: str | None, kinds: set[LinkKind]
) -> tuple[tuple[int, ...], tuple[GpuSet, ...]]:
    """Returns the class of each GPU and every set of a state that has one of the graphs."""
    classes = gpu_classes(used_part(one.topology, kinds), kinds)
    held = [Allocation(("",) * graph.nranks, graph, name) for name, graph in distinct.items()]
    return classes, found_sets(one.topology, classes, held, known, links)


def check_size(name: str, count: int) -> None:
    """Checks that a communicator can compare a machine of `count` vertices with the machine that it finds.

    Raises:
        UsageError: the machine has too many vertices.
    """
    if count > MOST_VERTICES:
        raise UsageError(
            f"{name} has {count} GPUs and switches, and a run compares at most {MOST_VERTICES} with what it finds",
            where="--survive",
            hint="compile one server of it",
        )


def _check_speeds(part: Topology, states: Sequence[MachineState]) -> None:
    """Checks that numerator and denominator of every speed fit in the tables, which have 64 bits for each."""
    speeds = [(f"{k.src}-{k.dst}", k.gbps) for k in part.links]
    speeds += [(f"{a}-{b}", gbps) for s in states if s.loss for a, b, _, gbps in s.loss.thinner]
    for where, gbps in speeds:
        if max(gbps.as_integer_ratio()) > _MAX_NUMBER:
            raise UsageError(
                "its speed has too many digits to be compared at creation",
                where=f"--survive: link {where}",
                hint="write it shorter",
            )
