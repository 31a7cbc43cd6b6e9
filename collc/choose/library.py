"""The contents of a library by collective and root: plan, protocol, chunk and channels for each range of sizes.

`library_contents` is the one way from a request to the contents of a library; `choose_programs` does one allocation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from math import log

from collc.build.compile import Contents
from collc.checker.layout import When
from collc.choose.by_class import class_contents
from collc.choose.given import GIVEN
from collc.choose.own_programs import fitted, read_programs
from collc.choose.programs import Chosen, ProgramList
from collc.choose.request import LibraryRequest, find_graphs, pack_allocation
from collc.choose.rules import MODELLED_RANKS, SIZES, rules
from collc.choose.strategy import Strategy, strategy_for
from collc.choose.table import SHORT_RUN, Table, choose
from collc.choose.turned import equal_both_ways, is_turned
from collc.collectives.model import Collective
from collc.collectives.sizes import bytes_per_call, short_size
from collc.ir.nodes import MAX_CHUNK_BYTES, Program
from collc.options import Target, TargetKind
from collc.packing.candidates import BY_SERVERS, rings_of
from collc.packing.columns import mirrored_links
from collc.packing.gpu_sets import GpuSets
from collc.packing.model import Plan
from collc.packing.network import Net
from collc.pipeline import Recorder
from collc.simulator.params import GENERIC, HOST_SERVERS, Machine, with_couriers_of_hosts
from collc.simulator.run import Simulator, Variant, own_channels
from collc.topology.model import LinkKind, PlanGraph

Status = Callable[[str], None]

# Between servers: with smaller chunks, headers and the counts that come back take more than a hundredth of the network.
_LEAST_WIRED_CHUNK = 16 << 10
# Calls of which more than hops count, and the share of the rate below which other plans are looked for.
_LARGE = 1 << 20
_MUCH = 0.6
# How often the model is asked again because of memory. After that, chunks are cut without asking.
_RECHOICES = 2


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
    if request.classes is not None:
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
            given=given,
            recorder=recorder,
            status=told(step),
        )
        documents.append(dataclasses.replace(document, plans=chosen.plans))
        entries.append(chosen.entries)
    return Contents(tuple(documents), tuple(entries), sets)


def _of_classes(
    request: LibraryRequest, target: Target, recorder: Recorder, status: Status, packed: Callable[[], object]
) -> Contents:
    """The contents of a library whose calls several classes of links share."""

    def alone(graph: PlanGraph, plans: Sequence[Plan]) -> Chosen:
        machine = request.parameters(graph.gpu_model)[0]
        strategy = strategy_for(target, graph, 1)
        return choose_programs(graph, plans, target, strategy, machine=machine, recorder=recorder, status=status)

    return class_contents(request, target, alone, recorder=recorder, status=status, packed=packed)


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
    given: Mapping[int, Program] | None = None,
    recorder: Recorder | None = None,
    status: Status = lambda text: None,
) -> Chosen:
    """Chooses, lowers and verifies the programs of an allocation.

    Args:
        packed: a proven plan for every collective and root.
        machine: the parameters of the model.
        for_tuning: add the candidates that `collc tune` compares.
        given: the user's programs by the number of their plan, each for all sizes.
    """
    recorder = recorder or Recorder()

    def fill(model: _ModelTables | None) -> ProgramList:
        found = ProgramList(graph, packed, target, recorder)
        for number, plan in enumerate(packed):
            if given and number in given:
                found.add_given(number, given[number])
            elif model is not None:
                status(f"choosing programs of {plan.collective.value}")
                found.add_table(number, model.table(plan))
            elif strategy is Strategy.RULE:
                for rule in rules(plan, graph.nranks, target, machine):
                    when = When(bytes_per_call(plan.collective, rule.min_bytes, graph.nranks))
                    found.add(number, rule.channels, rule.chunk_bytes, when, rule.why)
            elif strategy is Strategy.MEMORY and plan.solver != GIVEN:
                found.add_one_hop(number)
            else:
                found.add(number, 0, target.chunk_bytes, When())
            if for_tuning and graph.nranks > 1:
                status(f"adding candidates of {plan.collective.value}")
                found.add_for_tuning(number)
        found.leave_out_turns()
        return found

    def fill_by(model: _ModelTables) -> ProgramList:
        found = fill(model)
        # Slots are as large as the largest chunk of any program. Where memory asks for smaller ones, another number of
        # channels may be best, so the model is asked again.
        for _ in range(_RECHOICES):
            fitting = found.fitting_chunk()
            if fitting >= model.most_bytes:
                break
            status(f"choosing again: slots of {short_size(fitting)} fit the memory for FIFOs")
            model.limit(fitting)
            found = fill(model)
        return found

    if strategy not in (Strategy.MODEL, Strategy.SERVERS):
        return fill(None).chosen()
    servers = strategy is Strategy.SERVERS
    if servers:
        machine = HOST_SERVERS if target.kind is TargetKind.HOST else with_couriers_of_hosts(machine)
    model = _ModelTables(graph, packed, target, machine, BY_SERVERS if servers else ())
    found = fill_by(model)
    if model.leaves_much():
        # Rings over many channels have many FIFOs: all slots become smaller for them, those of other programs too.
        status("choosing again: with rings over many channels")
        wide = model.with_wide_rings()
        other = fill_by(wide)
        found = other if wide.time() < model.time() else found
    return found.chosen()


class _ModelTables:
    """The tables of one allocation: of each collective for the first of its roots, kept for the others.

    Args:
        beside: the kinds of plans that are compared with the packed trees [all]; these have a channel for each tree.
    """

    def __init__(
        self, graph: PlanGraph, packed: Sequence[Plan], target: Target, machine: Machine, beside: Sequence[str] = ()
    ) -> None:
        self.graph, self.packed, self.target, self.machine, self.beside = graph, packed, target, machine, beside
        self.most_bytes = target.chunk_bytes
        self.simulators: dict[Collective, Simulator] = {}
        self.tables: dict[Collective, Table] = {}
        self.own: dict[tuple[Collective, int | None], Table] = {}
        self.turns = mirrored_links(Net.of(graph)) is not None
        self.both_ways = equal_both_ways(graph)
        self.wide = False

    def with_wide_rings(self) -> _ModelTables:
        """A choice from the beginning in which rings may have as many channels as the target runs; what was simulated
        is kept."""
        made = _ModelTables(self.graph, self.packed, self.target, self.machine, self.beside)
        made.simulators, made.wide = self.simulators, True
        return made

    def leaves_much(self) -> bool:
        """Whether the largest call of a collective stays far below the plan's rate on links as the model has them, and
        there are rings that more channels may speed up. Behind switches there is no memory for their FIFOs
        (`Target.switched_bytes`), and where CPUs stage data their memory is the limit, not the choice."""
        kinds = {link.kind for link in self.graph.links}
        staged = any(vertex.memory_gbps is not None for vertex in self.graph.vertices)
        if kinds == {LinkKind.NVSWITCH} or staged or self.beside:
            return False
        carried = max(self.machine.link_class(kind).efficiency for kind in kinds)
        for collective, table in self.tables.items():
            rate = self.simulators[collective].plan("trees").rate
            reached = table.predictions[-1].algbw_gbps
            if "rings" in self.simulators[collective].kinds and rate and reached < _MUCH * carried * float(rate):
                return True
        return False

    def time(self) -> float:
        """What the tables cost in all, to compare with others: the logarithms of the times of large calls."""
        return sum(
            log(prediction.time_us)
            for table in self.tables.values()
            for prediction in table.predictions
            if prediction.bytes >= _LARGE
        )

    def limit(self, chunk_bytes: int) -> None:
        """Rules out larger chunks and drops the tables chosen so far."""
        self.most_bytes = chunk_bytes
        self.tables.clear()
        self.own.clear()

    def table(self, plan: Plan) -> Table:
        if plan.solver == GIVEN:
            key = (plan.collective, plan.root)
            if key not in self.own:
                self.own[key] = self._choose_variants(self._simulator(plan), ["trees"])
            return self.own[key]
        others = [p for p in self.packed if p.solver != GIVEN]
        first = next(p for p in others if p.collective is plan.collective)
        # On links that are equal both ways these are the others' trees turned round, and take the same time.
        turned = plan.collective.mirror if plan.collective.inward else None
        named = next((p for p in others if p.collective is turned), None)
        if named is not None and (self.turns or (self.both_ways and is_turned(named, first))):
            first = named
        if first.collective not in self.tables:
            self.tables[first.collective] = self._choose(first)
        return self.tables[first.collective]

    def _choose(self, plan: Plan) -> Table:
        if plan.collective not in self.simulators:
            self.simulators[plan.collective] = self._simulator(plan)
        simulator = self.simulators[plan.collective]
        if self.beside:
            kinds = list(filter(simulator.has, self.beside))
            if self.graph.nranks > MODELLED_RANKS:
                # One chunk of each tree alone would take longer to run than there is time for.
                kinds = [k for k in kinds if simulator.fifos(k, own_channels(simulator.plan(k))) <= SHORT_RUN]
            return self._choose_variants(simulator, ["trees", *kinds])
        # A ring is one of the rings, and a chain is never chosen.
        left_out = {"chain", "ring"} if "rings" in simulator.kinds else {"chain"}
        return self._choose_variants(simulator, [kind for kind in simulator.kinds if kind not in left_out])

    def _simulator(self, plan: Plan) -> Simulator:
        slots, few = self.target.slots, self.target.round_slots
        made = Simulator(self.graph, plan.collective, plan.root, self.machine, slots=slots, round_slots=few)
        made.plans["trees"] = plan
        return made

    def _choose_variants(self, simulator: Simulator, kinds: Sequence[str]) -> Table:
        can = {name.lower() for name in self.target.protocols}
        # Until memory says otherwise a protocol's own largest chunk may be above the target's.
        most = self.most_bytes if self.most_bytes < self.target.chunk_bytes else MAX_CHUNK_BYTES

        def allowed(variant: Variant) -> bool:
            # A ring has a FIFO per root and hop: twice the channels take twice the memory.
            plan = simulator.plan(variant.plan)
            ring = variant.plan in ("ring", "rings")
            doubled = ring and not self.wide and variant.channels > rings_of(plan)
            if self.beside:
                # Channels of the host are no thread blocks: more of them move nothing faster.
                doubled |= variant.channels > own_channels(plan) or variant.chunk_bytes < _LEAST_WIRED_CHUNK
            return variant.protocol.lower() in can and variant.chunk_bytes <= most and not doubled

        return choose(
            simulator,
            SIZES,
            kinds=kinds,
            only=allowed,
            favoured="trees" if self.beside else None,
            most_steps=SHORT_RUN if self.graph.nranks > MODELLED_RANKS else None,
        )
