"""The programs of a library of several classes of links: whole calls over the fastest class, and cut calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collc.build.compile import Contents
from collc.checker.layout import When
from collc.choose.judge import SLOW_CHANNELS, blocks_of, on_joint
from collc.choose.programs import Chosen, ProgramList
from collc.codegen.entry import Entry
from collc.collectives.model import Collective
from collc.collectives.sizes import bytes_per_call
from collc.ir.join_classes import join_classes
from collc.ir.nodes import Fifo, Program
from collc.ir.routes import moved_fifos, verify_routes
from collc.ir.verify import verify
from collc.options import Target, TargetKind
from collc.packing.candidates.plans import least_equal_parts, with_proof
from collc.packing.document import plan_file
from collc.packing.model import Plan
from collc.packing.sets.classes import ClassPlan, ClassPlans, join_class_plans, link_numbers, renumber_links
from collc.packing.sets.gpu_sets import written_set
from collc.pipeline import Recorder, lower_spread
from collc.topology.model import JOINT, Topology


@dataclass(frozen=True)
class Cut:
    """From `min_bytes` on (nccl-tests' bytes): the weight of each class, how its program is made, and its gain."""

    min_bytes: int
    weights: Mapping[str, int]
    channels: Mapping[str, int]
    chunk_bytes: int
    why: str
    gain: float = 0.0


class JoinedLibrary:
    """The plans and entries of the joint graph: first the joined plans, then the plans of the fastest class.

    Args:
        made: the plans of every collective and root, with only the classes that have a plan.
        alone: the programs of the fastest class.
    """

    def __init__(self, made: Sequence[ClassPlans], alone: Chosen, target: Target, recorder: Recorder) -> None:
        graph = made[0].graph
        self.graph, self.made, self.alone, self.target, self.recorder = graph, made, alone, target, recorder
        fast = made[0].classes[0].graph
        assert fast is not None
        self.numbers = link_numbers(fast, graph)
        self.joined = [join_class_plans(one) for one in made]
        proofs = {(plan.collective, plan.root): plan for plan in self.joined}
        moved = [renumber_links(plan, self.numbers) for plan in alone.plans]
        self.plans = [*self.joined, *(with_proof(plan, proofs[plan.collective, plan.root]) for plan in moved)]
        self.entries: list[Entry] = []
        self.moved: dict[int, tuple[Fifo, ...]] = {}
        self.programs: dict[tuple[object, ...], Program] = {}

    def cut(self, cuts: Mapping[Collective, Sequence[Cut]]) -> None:
        """Makes the entries. `cuts` states for each collective, for all of its roots, which sizes are cut and how."""
        self.entries = []
        for one in self.made:
            self._add(one, cuts[one.joint.collective])

    def _add(self, made: ClassPlans, cuts: Sequence[Cut]) -> None:
        """The entries of one collective and root."""
        key = (made.joint.collective, made.joint.root)
        number = [(plan.collective, plan.root) for plan in self.joined].index(key)
        leasts = [bytes_per_call(made.joint.collective, cut.min_bytes, self.graph.nranks) for cut in cuts]
        for entry in self.alone.entries:
            if (entry.program.collective, entry.program.root) != key:
                continue
            if entry.when.min_bytes is None or (leasts and entry.when.min_bytes >= leasts[0]):
                continue
            fifos = self.moved.setdefault(id(entry.program.fifos), moved_fifos(entry.program, self.numbers))
            program = entry.program.replace(fifos=fifos)
            self.entries.append(dataclasses.replace(entry, program=program, plan=entry.plan + len(self.joined)))
        for cut, least in zip(cuts, leasts, strict=True):
            program = self._program(made, number, cut)
            weights = tuple(cut.weights.get(name, 0) for name in JOINT)
            chunk = min(cut.chunk_bytes, self.target.chunk_bytes)
            if self.target.kind is TargetKind.HOST:
                chunk = self.target.chunk_bytes
            program = program.replace(chunk_bytes=chunk, weights=weights)
            self.entries.append(Entry(program, number, len(program.shares), When(least), cut.why))

    def _program(self, made: ClassPlans, number: int, cut: Cut) -> Program:
        """Returns the joined program; the caller sets its weights."""
        wanted = channels_of_root(made, cut.channels)
        key = (number, *((name, 0 if self.target.shares_slots else wanted[name]) for name in cut.weights))
        if key not in self.programs:
            lowered = {}
            blocks = blocks_of(made, wanted, self.target.max_channels)
            for own in made.classes:
                if own.name not in cut.weights or own.graph is None:
                    continue
                channels, target = 0, self.target
                if not self.target.shares_slots:
                    channels = wanted[own.name]
                    target = dataclasses.replace(target, max_channels=blocks[own.name])
                _, program = lower_spread(own_plan(own), channels, own.graph, target, self.recorder, f"-{own.name}")
                lowered[own.name] = on_joint(program, own.graph, self.graph)
            self.programs[key] = join_classes(lowered, cut.weights)
            with self.recorder.timed("verify"):
                verify(self.programs[key])
                verify_routes(self.programs[key], self.graph)
        return self.programs[key]

    def contents(self, topology: Topology) -> Contents:
        """All of it, with chunks cut until the FIFOs fit the memory for them."""
        chosen = self._listed().chosen()
        names = [self.graph.vertices[rank].name for rank in self.graph.ranks]
        return Contents((plan_file(self.graph, chosen.plans),), (chosen.entries,), written_set(topology, names))

    def fitting_chunk(self) -> int:
        """Returns the largest chunk that lets the FIFOs of all entries fit their memory."""
        return self._listed().fitting_chunk()

    def largest_uncut(self) -> int:
        """The largest chunk of calls of one class; 0: there are none."""
        return max((entry.program.chunk_bytes for entry in self.entries if not entry.program.weights), default=0)

    def _listed(self) -> ProgramList:
        found = ProgramList(self.graph, self.plans, self.target, self.recorder)
        found.entries = self.entries
        return found


def channels_of_root(made: ClassPlans, channels: Mapping[str, int]) -> dict[str, int]:
    """Returns the channels of each class's trees for one root, given the `channels` of the first root.

    Slower classes have parts of one weight, and how many these are depends on the trees of the root.
    """
    found = dict(channels)
    for own in made.classes[1:]:
        if own.name in found and own.plan is not None and (alike := least_equal_parts(own.plan)) <= SLOW_CHANNELS:
            found[own.name] = alike * max(1, found[own.name] // alike)
    return found


def own_plan(own: ClassPlan) -> Plan:
    """The plan of a class that has one."""
    assert own.plan is not None
    return own.plan
