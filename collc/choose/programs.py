"""The programs of one allocation as they are chosen: each lowered once, all within the memory for FIFOs."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from collc.build.manifest import fifo_memory
from collc.build.memory import KnownFifos, fifo_bytes_by_rank, server_bytes, transfer_bytes
from collc.checker.layout import When
from collc.choose.rules import ChunkRule, everywhere_below
from collc.choose.table import Table
from collc.codegen.entry import Entry
from collc.collectives.model import Collective
from collc.collectives.sizes import bytes_per_call, short_size
from collc.errors import PackingError
from collc.ir.nodes import Program
from collc.options import Target, TargetKind
from collc.packing.candidates import plans as candidates
from collc.packing.candidates.plans import BY_SERVERS, KINDS, MOST_CHANNELS, candidate, with_proof
from collc.packing.model import EVERYWHERE, Plan
from collc.pipeline import Recorder, lower, lower_everywhere, lower_spread
from collc.schedule.trees import schedule_trees
from collc.simulator.params import Machine
from collc.topology.graph import HOST
from collc.topology.model import LinkKind, PlanGraph
from collc.topology.staging import staged_pairs

# Candidates that a library for tuning has in addition to the packed trees.
TUNED_KINDS = ("rings", "ring", "double-binary", "one-hop", *BY_SERVERS)

# Up to this many bytes, all ranks together, an all_reduce hands every input to everyone. Every rank then reduces this
# much, which takes about as long as the second hop that it saves.
EVERYWHERE_BYTES = 64 << 10

# If no model chooses: thread blocks of programs whose ranks all reduce all inputs, and the maximum chunk that tuning
# tries for them, in bytes.
_CHANNELS, _SMALL_CHUNK = 8, 16 << 10

# Slots below cost more steps than memory is worth.
LEAST_SLOT = 16 << 10


@dataclass(frozen=True)
class Chosen:
    """The plans of an allocation, the packed ones first, and the entries that run them."""

    plans: tuple[Plan, ...]
    entries: tuple[Entry, ...]


@dataclass
class Lowered:
    """Programs by the number of the packed plan, the plan type, the channels and the bytes of their chunks (0: as they
    were lowered), and their FIFOs."""

    programs: dict[tuple[int, str, int, int], Program] = field(default_factory=dict)
    fifos: KnownFifos = field(default_factory=KnownFifos)


class ProgramList:
    """The plans, programs and entries of one allocation so far. Programs of equal steps are one object.

    Args:
        lowered: programs of earlier lists of the same plans; the list adds its programs.
    """

    def __init__(
        self,
        graph: PlanGraph,
        packed: Sequence[Plan],
        target: Target,
        recorder: Recorder,
        lowered: Lowered | None = None,
    ) -> None:
        self.graph, self.target, self.recorder = graph, target, recorder
        self.lowered = lowered or Lowered()
        # The program of a packed plan, a kind and a number of channels, where the model has lowered it.
        self.simulated: Callable[[Plan, str, int], Program | None] = lambda plan, kind, channels: None
        self.plans = list(packed)
        self.entries: list[Entry] = []
        self.kinds: dict[tuple[int, str], int] = {}
        self.made: dict[tuple[int, str], Plan | None] = {}
        self.given: dict[int, Program] = {}

    def plan(self, packed: int, kind: str) -> int | None:
        """The number of the plan of a kind for the collective and root of a packed plan; None if there is none."""
        if kind == "trees":
            return packed
        if (packed, kind) not in self.kinds:
            made = self.candidate(packed, kind)
            if made is None:
                return None
            self.kinds[packed, kind] = len(self.plans)
            self.plans.append(made)
        return self.kinds[packed, kind]

    def candidate(self, packed: int, kind: str) -> Plan | None:
        """Returns the plan, made once and not added to the plans of the allocation; None if there is none."""
        if (packed, kind) not in self.made:
            of = self.plans[packed]
            try:
                self.made[packed, kind] = with_proof(candidate(self.graph, of.collective, of.root, kind), of)
            except PackingError:
                self.made[packed, kind] = None
        return self.made[packed, kind]

    def program(self, number: int, channels: int, chunk: int = 0, *, everywhere: bool = False) -> Program:
        """Returns the plan spread over a number of channels, lowered and verified, with chunks of `chunk` bytes.

        Args:
            everywhere: it is the one-hop plan, and all ranks reduce all inputs.
        """
        if number in self.given:
            return self.given[number]
        of, kind = next((key for key, made in self.kinds.items() if made == number), (number, "trees"))
        kind = EVERYWHERE if everywhere else kind
        made = self.lowered.programs
        if (of, kind, channels, 0) not in made:
            plan = self.plans[number]
            # Stages are dumped as they run.
            found = None if self.recorder.dump_after else self.simulated(self.plans[of], kind, channels)
            label = f"-{plan.kind}" if plan.kind in KINDS else ""
            suffix = label + (f"-x{channels}" if channels else "")
            if found is None and everywhere:
                found = lower_everywhere(plan, channels, self.graph, self.target, self.recorder)
            elif found is None:
                _, found = lower_spread(plan, channels, self.graph, self.target, self.recorder, suffix)
            made[of, kind, channels, 0] = found
        if (of, kind, channels, chunk) not in made:
            made[of, kind, channels, chunk] = made[of, kind, channels, 0].replace(chunk_bytes=chunk)
        return made[of, kind, channels, chunk]

    def add(
        self, number: int, channels: int, chunk: int, when: When, why: str = "", *, everywhere: bool = False
    ) -> None:
        """Adds an entry, unless it does the same as the one before it."""
        chunk = max(16, min(chunk, self.target.chunk_bytes) // 16 * 16)
        program = self.program(number, channels, chunk, everywhere=everywhere)
        entry = Entry(program, number, channels, when, why, everywhere)
        if when.min_bytes and self._same(self.entries[-1], entry):
            return
        self.entries.append(entry)

    def add_given(self, number: int, program: Program) -> None:
        """The user's program, for all sizes."""
        self.given[number] = program
        self.entries.append(Entry(program, number, why="as given"))

    def add_table(self, packed: int, table: Table) -> None:
        """The choices of a table. Where this root has no such plan, the choice before it goes on."""
        of = self.plans[packed]
        first = True
        for choice in table.choices:
            everywhere = choice.variant.plan == EVERYWHERE
            number = self.plan(packed, "one-hop" if everywhere else choice.variant.plan)
            if number is None and not first:
                continue
            least = 0 if first else bytes_per_call(of.collective, choice.min_bytes, self.graph.nranks)
            v = choice.variant
            when = When(least, v.protocol)
            number = packed if number is None else number
            self.add(number, v.channels, v.chunk_bytes, when, choice.why, everywhere=everywhere)
            first = False

    def add_rules(self, packed: int, rules: Sequence[ChunkRule], machine: Machine) -> None:
        """The choices of rules, below them one hop of all inputs for small all_reduces, where that is faster."""
        of = self.plans[packed]
        below = self._add_small_all_reduces(packed, machine)
        for rule, end in zip(rules, [*(rule.min_bytes for rule in rules[1:]), None], strict=True):
            if end is None or end > below:
                when = When(bytes_per_call(of.collective, max(rule.min_bytes, below), self.graph.nranks))
                self.add(packed, rule.channels, rule.chunk_bytes, when, rule.why)

    def _add_small_all_reduces(self, packed: int, machine: Machine) -> int:
        """Returns up to how many bytes."""
        nranks, of = self.graph.nranks, self.plans[packed]
        if of.collective is not Collective.ALL_REDUCE or nranks <= 2 or self.target.shares_slots:
            return 0
        if staged_pairs(self.graph):  # these calls do not run over LL, whose time the rule uses
            return 0
        one_hop = self.candidate(packed, "one-hop")
        if one_hop is None or self.graph.nservers > 1:
            return 0
        below = everywhere_below(of, candidates.everywhere(self.graph, one_hop), machine)
        number = self.plan(packed, "one-hop") if below else None
        if number is None:
            return 0
        why = "small calls pay for hops: all ranks reduce all inputs, by a rule"
        # A share of the largest such call is one chunk, so that slots are no larger than it needs.
        self.add(number, _CHANNELS, below // _CHANNELS, When(), why, everywhere=True)
        return below

    def add_one_hop(self, packed: int) -> None:
        """Every root exchanges data with every other rank directly; every rank reduces small all_reduces itself."""
        number = self.plan(packed, "one-hop")
        assert number is not None, "a memory joins all ranks directly"
        least = 0
        if self.plans[packed].collective is Collective.ALL_REDUCE:
            plan = self.plans[number]
            everywhere = lower(plan, self.graph, self.target, self.recorder, "-everywhere", everywhere=True)
            why = "small calls pay for hops: all ranks reduce all inputs"
            self.entries.append(Entry(everywhere, number, why=why, everywhere=True))
            least = EVERYWHERE_BYTES // self.graph.nranks
        self.add(number, 0, self.target.chunk_bytes, When(least), "one memory: one hop, written once")

    def add_for_tuning(self, packed: int) -> None:
        """Every kind of plan with every chunk size, unless the table has it or its trees equal another plan's."""
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
        self.entries += [e for e in self._everywhere_for_tuning(packed) if not any(self._same(o, e) for o in own)]

    def _everywhere_for_tuning(self, packed: int) -> list[Entry]:
        alone = self.graph.nservers == 1
        if self.plans[packed].collective is not Collective.ALL_REDUCE or self.target.shares_slots or not alone:
            return []
        one_hop = self.plan(packed, "one-hop")
        if one_hop is None:
            return []
        found = []
        for chunk in self.target.tuning_chunks:
            if chunk <= _SMALL_CHUNK:
                program = self.program(one_hop, _CHANNELS, chunk, everywhere=True)
                found.append(Entry(program, one_hop, _CHANNELS, When(None), everywhere=True))
        return [] if self._memory([*self.entries, *found], self.target.chunk_bytes) > 1 else found

    def leave_out_turns(self) -> None:
        """Drops programs whose parts take turns where their FIFOs do not fit even with the least slots."""
        if self._memory(self.entries, LEAST_SLOT) > 1:
            self.entries = [e for e in self.entries if e.spread <= MOST_CHANNELS or not e.when.min_bytes]

    def chosen(self) -> Chosen:
        """The plans and the entries, cut until their FIFOs fit the memory for them."""
        return Chosen(tuple(self.plans), tuple(self.within_memory()))

    def memory(self) -> float:
        """The share of the target's memory that the FIFOs of all entries take."""
        return self._memory(self.entries, self.target.chunk_bytes)

    def fitting_chunk(self) -> int:
        """Returns the largest chunk, by halves of the target's, that lets the FIFOs fit their memory."""
        cap = self.target.chunk_bytes
        while cap > LEAST_SLOT and self._memory(self.entries, cap) > 1:
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
        nranks = self.graph.nranks
        if self.target.kind is TargetKind.HOST:
            return fifo_memory(entries, self.target.slots, slot_bytes) / (self.target.fifo_bytes * nranks)
        most = self.target.fifo_bytes
        # FIFOs over PCIe lie in host memory.
        fast = {link.kind for link in self.graph.links} - HOST
        taken = max(fifo_bytes_by_rank(entries, nranks, slot_bytes, self.lowered.fifos))
        if fast == {LinkKind.NVSWITCH}:
            most = min(most, self._switched_bytes)
            # Slots of transfers are as large, or halved until they fit: just below that they take most.
            slot = min(slot_bytes, max(entry.program.chunk_bytes for entry in entries))
            taken += max(0, transfer_bytes(nranks, slot) - transfer_bytes(nranks, self.target.chunk_bytes))
        return max(taken / most, self._of_servers(entries, slot_bytes))

    @cached_property
    def _switched_bytes(self) -> int:
        """Most memory for FIFOs per rank where all links of the GPUs end at switches."""
        out: dict[int, Fraction] = defaultdict(Fraction)
        for link in self.graph.links:
            out[link.src] += link.gbps
        faster = max(Fraction(1), max(out[rank] for rank in self.graph.ranks) / self.target.switched_gbps)
        return int(self.target.switched_bytes * -(-self.graph.nranks // 8) * faster)

    def _of_servers(self, entries: Sequence[Entry], slot_bytes: int) -> float:
        """Returns the share of a server's memory, which its ranks share, that FIFOs between servers take."""
        servers = self.graph.rank_servers
        most = self.target.fifo_bytes * max(Counter(servers).values())
        slot = min(slot_bytes, max(entry.program.chunk_bytes for entry in entries))
        return server_bytes(entries, servers, self.target.slots, slot) / most

    def _serves(self, entry: Entry, of: Plan) -> bool:
        plan = self.plans[entry.plan]
        return (plan.collective, plan.root) == (of.collective, of.root)

    @staticmethod
    def _same(a: Entry, b: Entry) -> bool:
        def key(e: Entry) -> tuple[object, ...]:
            return (e.plan, id(e.program.channels), e.program.chunk_bytes, e.program.weights, e.when.protocol)

        return key(a) == key(b)


def _shape(plan: Plan, nranks: int) -> frozenset[object]:
    """The content of a schedule: which parts travel along which trees."""
    parts = schedule_trees(plan, nranks).parts
    return frozenset((p.block, p.lo, p.hi, frozenset(p.reduce), frozenset(p.broadcast)) for p in parts)
