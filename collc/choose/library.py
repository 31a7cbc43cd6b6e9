"""The contents of a library by collective and root: plan, protocol, chunk and channels for each range of sizes.

`library_contents` is the one way from a request to the contents of a library; `choose_programs` does one allocation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from collc.build.compile import Contents
from collc.checker.layout import When
from collc.choose.by_class import class_contents
from collc.choose.given import GIVEN
from collc.choose.idle_links import AUTO, may_share, with_idle_links
from collc.choose.in_switch import with_in_switch
from collc.choose.modeled import ModelTables, fit
from collc.choose.own_programs import fitted, read_programs
from collc.choose.programs import Chosen, Lowered, ProgramList
from collc.choose.request import LibraryRequest, find_graphs, pack_allocation
from collc.choose.rules import rules
from collc.choose.strategy import Strategy, strategy_for
from collc.ir.nodes import Program
from collc.options import Target, TargetKind
from collc.packing.candidates.plans import BY_SERVERS
from collc.packing.model import Plan
from collc.packing.sets.gpu_sets import GpuSets
from collc.pipeline import Recorder
from collc.simulator.params import GENERIC, HOST_SERVERS, Machine, with_couriers_of_hosts
from collc.topology.model import JOINT, PlanGraph

Status = Callable[[str], None]


def library_contents(
    request: LibraryRequest,
    target: Target,
    *,
    recorder: Recorder | None = None,
    status: Status = lambda text: None,
    packed: Callable[[], object] = lambda: None,
) -> Contents:
    """Reads the topology, packs and proves the plans of every allocation, chooses and verifies its programs.

    Args:
        packed: called when the input has been found good and packing is done, before programs are chosen.

    Raises:
        CollcError: the topology, the request or a plan is not possible.
    """
    recorder = recorder or Recorder()
    if request.classes not in (None, AUTO, *JOINT[:1]):
        return _of_classes(request, target, recorder, status, packed)
    graphs, sets = find_graphs(request, status)
    steps = [f"allocation {n}/{len(graphs)}: " if len(graphs) > 1 else "" for n in range(1, len(graphs) + 1)]

    def told(step: str) -> Status:
        return lambda text: status(step + text)

    own = read_programs(request.programs)
    proven = [pack_allocation(graph, request, recorder, told(s)) for graph, s in zip(graphs, steps, strict=True)]
    given: dict[int, Program] = {}
    if own:  # of one allocation
        plans, given = fitted(own, proven[0].graph, proven[0].plans, target)
        proven[0] = dataclasses.replace(proven[0], plans=plans)
    packed()
    documents, entries = [], []
    whole = _whole_machines(request, sets)
    for number, (document, step) in enumerate(zip(proven, steps, strict=True)):
        # The whole machine runs as it does in a library that survives nothing.
        alone = number in whole
        status(f"{step}lowering {len(document.plans)} plans")
        chosen = choose_programs(
            document.graph,
            document.plans,
            target,
            strategy_for(target, document.graph, 1 if alone else len(graphs)),
            machine=request.parameters(document.graph.gpu_model)[0],
            for_tuning=request.tune_candidates,
            in_switch=request.in_switch,
            given=given,
            recorder=recorder,
            status=told(step),
        )
        documents.append(dataclasses.replace(document, plans=chosen.plans))
        entries.append(chosen.entries)
    contents = Contents(tuple(documents), tuple(entries), sets)
    return with_idle_links(request, target, contents, recorder, status) if may_share(request, target) else contents


def _of_classes(
    request: LibraryRequest, target: Target, recorder: Recorder, status: Status, packed: Callable[[], object]
) -> Contents:
    """The contents of a library whose calls several classes of links share."""

    def alone(graph: PlanGraph, plans: Sequence[Plan]) -> Chosen:
        machine = request.parameters(graph.gpu_model)[0]
        strategy = strategy_for(target, graph, 1)
        return choose_programs(graph, plans, target, strategy, machine=machine, recorder=recorder, status=status)

    return class_contents(request, target, alone, recorder=recorder, status=status, packed=packed)


def model_machine(graph: PlanGraph, target: Target, machine: Machine) -> Machine:
    """Returns the parameters of the model for a graph. Over servers, proxy threads that move data are added."""
    if graph.nservers == 1:
        return machine
    return HOST_SERVERS if target.kind is TargetKind.HOST else with_couriers_of_hosts(machine)


def _whole_machines(request: LibraryRequest, sets: GpuSets) -> set[int]:
    """The allocations of whole machines, one or one of each kind, in a library that has others for losses."""
    if request.allocations is not None:
        return set()
    found, at = set(), 0
    for state in sets.states:
        own = sets.sets[at : at + state.nsets]
        at += state.nsets
        found |= {one.allocation for one in own if state.loss is None}
    return found


def choose_programs(
    graph: PlanGraph,
    packed: Sequence[Plan],
    target: Target,
    strategy: Strategy,
    *,
    machine: Machine = GENERIC,
    for_tuning: bool = False,
    in_switch: bool = False,
    given: Mapping[int, Program] | None = None,
    recorder: Recorder | None = None,
    status: Status = lambda text: None,
) -> Chosen:
    """Chooses, lowers and verifies the programs of an allocation.

    Args:
        packed: a proven plan for every collective and root.
        machine: the parameters of the model.
        for_tuning: add the candidates that `collc tune` compares.
        in_switch: add programs inside a switch; where the model chooses.
        given: the user's programs by the number of their plan, each for all sizes.
    """
    recorder = recorder or Recorder()

    lowered = Lowered()

    def fill(model: ModelTables | None) -> ProgramList:
        found = ProgramList(graph, packed, target, recorder, lowered)
        if model is not None:
            found.simulated = model.lowered
        for number, plan in enumerate(packed):
            if given and number in given:
                found.add_given(number, given[number])
            elif model is not None:
                status(f"choosing programs of {plan.collective.value}")
                found.add_table(number, model.table(plan))
            elif strategy is Strategy.RULE:
                found.add_rules(number, rules(plan, target, machine), machine)
            elif strategy is Strategy.MEMORY and plan.solver != GIVEN:
                found.add_one_hop(number)
            else:
                found.add(number, 0, target.chunk_bytes, When())
            if for_tuning and graph.nranks > 1:
                status(f"adding candidates of {plan.collective.value}")
                found.add_for_tuning(number)
        found.leave_out_turns()
        return found

    if strategy not in (Strategy.MODEL, Strategy.SERVERS):
        return fill(None).chosen()
    servers = strategy is Strategy.SERVERS
    machine = model_machine(graph, target, machine)
    model = ModelTables(graph, packed, target, machine, BY_SERVERS if servers else ())
    found, model = fit(fill, model, status)
    chosen = found.chosen()
    return with_in_switch(chosen, packed, model, recorder, status) if in_switch and not servers else chosen
