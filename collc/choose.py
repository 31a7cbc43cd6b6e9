"""What a library holds for each collective and root: which plan, protocol, chunk and channels from which size on.

Four ways to decide, by `Way`:

- one: the packed trees for every size, which is what the host target gets: its ranks share one memory, whose speeds the
  model does not know, and `collc tune` measures them;
- memory: the same target where the topology is that one memory (`collc probe --cpu`): one hop, as any rank reads what
  any other has written once, and for small all_reduces the reduction at every rank;
- model: `collc.simulate.choose`, the table of one root for all roots;
- rule: the packed trees for every size, chunks by the time of a pipeline in closed form, parts that take turns in large
  all_reduces: microseconds per plan, for libraries with many allocations and for machines too large to simulate.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collc.build.manifest import fifo_memory
from collc.codegen.context import When
from collc.codegen.entry import Entry
from collc.errors import PackingError
from collc.ir.nodes import MAX_CHUNK_BYTES, Program
from collc.options import Target, TargetKind
from collc.packing.columns import mirrored_links
from collc.packing.model import Collective, Plan
from collc.packing.network import Net
from collc.pipeline import Recorder, lower
from collc.schedule.candidates import (
    KINDS,
    MOST_CHANNELS,
    candidate,
    channels_of,
    rings_of,
    spread,
    with_proof,
)
from collc.schedule.trees import schedule_trees
from collc.simulate.choose import Table, choose
from collc.simulate.params import GENERIC, Machine
from collc.simulate.rules import MODELLED_RANKS, SIZES, rules
from collc.simulate.run import Simulator, Variant, short_size
from collc.topology.model import LinkKind, PlanGraph, VertexKind

# Candidates that a library for tuning holds beside the packed trees.
TUNED_KINDS = ("rings", "ring", "double-binary", "one-hop")

# Up to this many bytes, all ranks together, an all_reduce hands every input to everyone. Every rank then reduces this
# much, which takes about as long as the second hop that it saves.
EVERYWHERE_BYTES = 64 << 10

# Slots below cost more steps than memory is worth.
_LEAST_SLOT = 16 << 10
# So often is the model asked again because of memory; then chunks are cut without asking.
_RECHOICES = 2
_PER_RANK = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
# On links that are equal both ways these are the others' trees turned round, and take the same time.
_TURNED = {Collective.REDUCE: Collective.BROADCAST, Collective.REDUCE_SCATTER: Collective.ALL_GATHER}


class Way(enum.Enum):
    """How programs are chosen."""

    ONE = "one"
    MEMORY = "memory"
    MODEL = "model"
    RULE = "rule"


def way_for(target: Target, graph: PlanGraph, nallocations: int) -> Way:
    """The default of a target."""
    if target.kind is TargetKind.HOST and graph.nranks > 1 and _is_one_memory(graph):
        return Way.MEMORY
    if target.kind is TargetKind.HOST or graph.nranks == 1:
        return Way.ONE
    return Way.MODEL if nallocations == 1 and graph.nranks <= MODELLED_RANKS else Way.RULE


def _is_one_memory(graph: PlanGraph) -> bool:
    """Ranks that are cores: nothing but coherent links, to the memory of their socket."""
    out = [link for link in graph.links if link.src < graph.nranks]
    cpus = all(graph.vertices[v].kind is VertexKind.CPU for v in graph.forwarders)
    return cpus and all(link.kind is LinkKind.C2C and link.dst >= graph.nranks for link in out)


@dataclass(frozen=True)
class Held:
    """The plans of a library, the packed ones first, and the entries that run them."""

    plans: tuple[Plan, ...]
    entries: tuple[Entry, ...]


def hold(
    graph: PlanGraph,
    packed: Sequence[Plan],
    target: Target,
    way: Way,
    *,
    machine: Machine = GENERIC,
    for_tuning: bool = False,
    recorder: Recorder | None = None,
    status: Callable[[str], None] = lambda text: None,
) -> Held:
    """Chooses, lowers and verifies the programs of an allocation.

    Args:
        packed: a proven plan for every collective and root.
        machine: the parameters of the model.
        for_tuning: add the candidates that `collc tune` compares.
    """
    recorder = recorder or Recorder()
    if way is not Way.MODEL:
        return _filled(graph, packed, target, way, machine, None, for_tuning, recorder, status).held()
    model = _Model(graph, packed, target, machine)
    shelf = _filled(graph, packed, target, way, machine, model, for_tuning, recorder, status)
    # Slots are as large as the largest chunk of any program. Where memory asks for smaller ones, another number of
    # channels may be best, so the model is asked again.
    for _ in range(_RECHOICES):
        fitting = shelf.fitting_chunk()
        if fitting >= model.most_bytes:
            break
        status(f"choosing again: slots of {short_size(fitting)} fit the memory for FIFOs")
        model.limit(fitting)
        shelf = _filled(graph, packed, target, way, machine, model, for_tuning, recorder, status)
    return shelf.held()


def _filled(
    graph: PlanGraph,
    packed: Sequence[Plan],
    target: Target,
    way: Way,
    machine: Machine,
    model: _Model | None,
    for_tuning: bool,
    recorder: Recorder,
    status: Callable[[str], None],
) -> _Shelf:
    """The programs of every plan, chosen in a way."""
    shelf = _Shelf(graph, packed, target, recorder)
    for number, plan in enumerate(packed):
        if model is not None:
            status(f"choosing programs of {plan.collective.value}")
            shelf.add_table(number, model.table(plan))
        elif way is Way.RULE:
            for rule in rules(plan, graph.nranks, target, machine):
                when = When(_per_call(plan, graph.nranks, rule.min_bytes))
                shelf.add(number, rule.channels, rule.chunk_bytes, when, rule.why)
        elif way is Way.MEMORY:
            shelf.add_one_hop(number)
        else:
            shelf.add(number, 0, target.chunk_bytes, When())
        if for_tuning and graph.nranks > 1:
            status(f"adding candidates of {plan.collective.value}")
            shelf.add_for_tuning(number)
    shelf.leave_out_turns()
    return shelf


class _Shelf:
    """The plans, programs and entries of one library so far. Programs of equal steps are one object."""

    def __init__(self, graph: PlanGraph, packed: Sequence[Plan], target: Target, recorder: Recorder) -> None:
        self.graph, self.target, self.recorder = graph, target, recorder
        self.plans = list(packed)
        self.entries: list[Entry] = []
        self.kinds: dict[tuple[int, str], int] = {}
        self.programs: dict[tuple[int, int], Program] = {}

    def plan(self, packed: int, kind: str) -> int | None:
        """The number of the plan of a kind for the collective and root of a packed plan; None if there is none."""
        if kind == "trees":
            return packed
        if (packed, kind) not in self.kinds:
            of = self.plans[packed]
            try:
                made = with_proof(candidate(self.graph, of.collective, of.root, kind), of)
            except PackingError:
                return None
            self.kinds[packed, kind] = len(self.plans)
            self.plans.append(made)
        return self.kinds[packed, kind]

    def program(self, number: int, channels: int) -> Program:
        """The plan spread over so many channels, lowered and verified."""
        if (number, channels) not in self.programs:
            plan = self.plans[number]
            cut = spread(plan, channels) if channels else plan
            most = min(self.target.max_channels, channels_of(cut)) if channels else self.target.max_channels
            target = dataclasses.replace(self.target, max_channels=max(1, most))
            label = f"-{plan.solver}" if plan.solver in KINDS else ""
            suffix = label + (f"-x{channels}" if channels else "")
            self.programs[number, channels] = lower(cut, self.graph.nranks, target, self.recorder, suffix)
        return self.programs[number, channels]

    def add(self, number: int, channels: int, chunk: int, when: When, why: str = "") -> None:
        """Adds an entry; what the entry before it does anyway is left out."""
        program = self.program(number, channels)
        chunk = max(16, min(chunk, self.target.chunk_bytes) // 16 * 16)
        entry = Entry(program.replace(chunk_bytes=chunk), number, channels, when, why)
        if when.min_bytes and self._same(self.entries[-1], entry):
            return
        self.entries.append(entry)

    def add_table(self, packed: int, table: Table) -> None:
        """The choices of a table; one whose plan this root does not have is left to the one before."""
        of = self.plans[packed]
        first = True
        for choice in table.choices:
            number = self.plan(packed, choice.variant.plan)
            if number is None and not first:
                continue
            least = 0 if first else _per_call(of, self.graph.nranks, choice.min_bytes)
            v = choice.variant
            self.add(
                packed if number is None else number, v.channels, v.chunk_bytes, When(least, v.protocol), choice.why
            )
            first = False

    def add_one_hop(self, packed: int) -> None:
        """Every root speaks with every other rank directly; small all_reduces are reduced everywhere."""
        number = self.plan(packed, "one-hop")
        assert number is not None, "a memory joins all ranks directly"
        least = 0
        if self.plans[packed].collective is Collective.ALL_REDUCE:
            plan = self.plans[number]
            everywhere = lower(plan, self.graph.nranks, self.target, self.recorder, "-everywhere", everywhere=True)
            why = "small calls pay for hops: all ranks reduce all inputs"
            self.entries.append(Entry(everywhere, number, why=why, everywhere=True))
            least = EVERYWHERE_BYTES // self.graph.nranks
        self.add(number, 0, self.target.chunk_bytes, When(least), "one memory: one hop, written once")

    def add_for_tuning(self, packed: int) -> None:
        """Every kind of plan with every chunk size, unless the table has it already or it is the trees of another."""
        of = self.plans[packed]
        own = [e for e in self.entries if self._serves(e, of)]
        shapes: list[object] = []
        for kind in ("trees", *TUNED_KINDS):
            number = self.plan(packed, kind)
            if number is None:
                continue
            shape = _shape(self.plans[number], self.graph.nranks)
            if shape in shapes:
                continue
            shapes.append(shape)
            program = self.program(number, 0)
            if self._memory([*self.entries, Entry(program, number)], self.target.chunk_bytes) > 1:
                continue
            for chunk in self.target.tuning_chunks:
                entry = Entry(program.replace(chunk_bytes=chunk), number, 0, When(None))
                if not any(self._same(e, entry) for e in own):
                    self.entries.append(entry)

    def leave_out_turns(self) -> None:
        """Drops programs of many parts where their FIFOs do not fit even with the least slots."""
        if self._memory(self.entries, _LEAST_SLOT) > 1:
            self.entries = [e for e in self.entries if e.spread <= MOST_CHANNELS or not e.when.min_bytes]

    def held(self) -> Held:
        return Held(tuple(self.plans), tuple(self.within_memory()))

    def fitting_chunk(self) -> int:
        """The largest chunk, by halves of the target's, with which the FIFOs fit the memory for them."""
        cap = self.target.chunk_bytes
        while cap > _LEAST_SLOT and self._memory(self.entries, cap) > 1:
            cap //= 2
        return cap

    def within_memory(self) -> list[Entry]:
        """The entries with chunks halved until the FIFOs, which have the largest chunk for a slot, fit."""
        cap = self.fitting_chunk()
        found: list[Entry] = []
        for entry in self.entries:
            if entry.program.chunk_bytes > cap:
                program = entry.program.replace(chunk_bytes=cap)
                why = f"{entry.why}; chunks of {short_size(cap)} at most, for memory" if entry.why else ""
                entry = dataclasses.replace(entry, program=program, why=why)
            before = found[-1] if found else None
            if before is None or entry.when.min_bytes == 0 or not self._same(before, entry):
                found.append(entry)
        return found

    def _memory(self, entries: Sequence[Entry], slot_bytes: int) -> float:
        """The share of the target's memory that the FIFOs of these entries take with slots of at most `slot_bytes`."""
        return fifo_memory(entries, self.target.slots, slot_bytes) / (self.target.fifo_bytes * self.graph.nranks)

    def _serves(self, entry: Entry, of: Plan) -> bool:
        plan = self.plans[entry.plan]
        return (plan.collective, plan.root) == (of.collective, of.root)

    @staticmethod
    def _same(a: Entry, b: Entry) -> bool:
        def key(e: Entry) -> tuple[object, ...]:
            return (e.plan, id(e.program.channels), e.program.chunk_bytes, e.when.protocol)

        return key(a) == key(b)


def _shape(plan: Plan, nranks: int) -> frozenset[object]:
    """What a schedule does: which parts travel along which trees."""
    parts = schedule_trees(plan, nranks).parts
    return frozenset((p.block, p.lo, p.hi, frozenset(p.reduce), frozenset(p.broadcast)) for p in parts)


def _per_call(plan: Plan, nranks: int, size: int) -> int:
    """nccl-tests' bytes as NCCL's count times the element size: per rank for all_gather and reduce_scatter."""
    return -(-size // nranks) if plan.collective in _PER_RANK else size


class _Model:
    """The tables of one allocation: of each collective for the first of its roots, kept for the others."""

    def __init__(self, graph: PlanGraph, packed: Sequence[Plan], target: Target, machine: Machine) -> None:
        self.graph, self.packed, self.target, self.machine = graph, packed, target, machine
        self.most_bytes = target.chunk_bytes
        self.simulators: dict[Collective, Simulator] = {}
        self.tables: dict[Collective, Table] = {}
        self.turns = mirrored_links(Net.of(graph)) is not None

    def limit(self, chunk_bytes: int) -> None:
        """Chunks beyond this are out of the question from now on; what was chosen so far is forgotten."""
        self.most_bytes = chunk_bytes
        self.tables.clear()

    def table(self, plan: Plan) -> Table:
        turned = _TURNED.get(plan.collective) if self.turns else None
        named = [p for p in self.packed if p.collective is turned]
        first = (named or [p for p in self.packed if p.collective is plan.collective])[0]
        if first.collective not in self.tables:
            self.tables[first.collective] = self._choose(first)
        return self.tables[first.collective]

    def _choose(self, plan: Plan) -> Table:
        if plan.collective not in self.simulators:
            made = Simulator(self.graph, plan.collective, plan.root, self.machine)
            made.plans["trees"] = plan
            self.simulators[plan.collective] = made
        simulator = self.simulators[plan.collective]
        # A ring is one of the rings, and a chain is never chosen.
        left_out = {"chain", "ring"} if "rings" in simulator.kinds else {"chain"}
        kinds = [kind for kind in simulator.kinds if kind not in left_out]
        can = {name.lower() for name in self.target.protocols}
        # Until memory says otherwise a protocol's own largest chunk may be above the target's.
        most = self.most_bytes if self.most_bytes < self.target.chunk_bytes else MAX_CHUNK_BYTES

        def allowed(variant: Variant) -> bool:
            # A ring has a FIFO per root and hop: twice the channels would take twice the memory for a few percent.
            doubled = variant.plan in ("ring", "rings") and variant.channels > rings_of(simulator.plan(variant.plan))
            return variant.protocol.lower() in can and variant.chunk_bytes <= most and not doubled

        return choose(simulator, SIZES, kinds=kinds, only=allowed)
