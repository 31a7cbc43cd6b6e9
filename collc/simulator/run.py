"""The front door: predict the time of a plan at a size, whole or extrapolated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import call_bytes, element_count, short_size
from collc.errors import UsageError
from collc.ir.nodes import MAX_CHUNK_BYTES, Program
from collc.options import CUDA
from collc.packing.candidates.plans import rings_of
from collc.packing.model import EVERYWHERE, IN_SWITCH, RINGS, Plan
from collc.pipeline import Recorder, lower_everywhere, lower_in_switch, lower_spread, slots_of
from collc.simulator import compiled
from collc.simulator.compiled import run_fastest
from collc.simulator.couriers import with_couriers
from collc.simulator.engine import Outcome
from collc.simulator.floors import Floor
from collc.simulator.lump import Lumped, Lumper, unlumped
from collc.simulator.model import Case, make_case, with_count
from collc.simulator.params import GENERIC, Machine, Protocol
from collc.simulator.plans import Plans
from collc.simulator.rails import Rails
from collc.simulator.rows import simulated_row
from collc.topology.model import LinkKind, PlanGraph

ELEMENT_BYTES = 4
LEAST_CHUNK = 16  # and chunks are multiples of it
# Channels of programs in which every rank reduces all inputs. Each channel has a FIFO between any two ranks.
EVERYWHERE_CHANNELS = [1, 2, 4, 8]
# More steps than this are extrapolated from runs of a quarter, half and the whole of it.
WHOLE_RUN = {True: 40_000, False: 8_000}  # with the C++ engine, without
# The slopes of those runs must agree this well; else the call is run whole.
STEADY = 0.01
# Calls with more steps than this are lumped first; for smaller ones, finding equal parts takes longer than running.
LUMPED_FROM = 4_000
# Programs with more FIFOs are no candidates: lowering and verifying take a second per 15,000.
MOST_FIFOS = 200_000
# And are refused beyond this: minutes and gigabytes.
LARGEST_PROGRAM = 1_000_000
# The work of a step: so much, and 1 for each loop, whose rate the step may change. A unit takes about 10 ns of a 3 GHz
# core with the C++ engine (measured on programs of 16 to 544 loops).
STEP_WORK = 64
# A run beyond this is refused: tens of seconds and gigabytes.
MOST_STEPS = 20_000_000
# And one of more steps times loops, for a step may change the rates of all: some twenty seconds.
MOST_WORK = 2_000_000_000


@dataclass(frozen=True)
class Variant:
    """One way to run a collective: a kind of plan, a protocol, bytes per chunk, channels."""

    plan: str
    protocol: str
    chunk_bytes: int
    channels: int

    def label(self) -> str:
        """Such as trees/LL128/64Kx32: plan, protocol, bytes per chunk, channels."""
        return f"{self.plan}/{self.protocol}/{short_size(self.chunk_bytes)}x{self.channels}"


@dataclass(frozen=True)
class Prediction:
    """The prediction for one call.

    `bytes`, `algbw_gbps` and `busbw_gbps` as nccl-tests counts them. `case` and `outcome` are the run that it comes
    from; where `scale` is not 1, of a call that was smaller by this factor.
    """

    collective: Collective
    root: int | None
    variant: Variant
    nranks: int
    bytes: int
    time_us: float
    case: Case
    outcome: Outcome
    scale: float

    @property
    def algbw_gbps(self) -> float:
        """GB/s of the buffer, as nccl-tests counts it."""
        return self.bytes / self.time_us / 1e3 if self.time_us else 0.0

    @property
    def busbw_gbps(self) -> float:
        """`algbw_gbps` times the factor of nccl-tests."""
        return self.algbw_gbps * self.collective.bus_factor(self.nranks)

    def period_us(self, machine: Machine, together: int = 1) -> float:
        """The time per call when calls follow each other without a pause, which is what nccl-tests prints.

        A rank begins its next call when its own part of this one is done, so a rank far down a broadcast that waits for
        its first chunk delays nobody: what counts is each rank's time from its first step to its last.

        Args:
            together: the number of GPUs that get their calls from one thread, one after the other (nccl-tests' -g).
        """
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        for loop, begin, end in spans(self.outcome):
            for rank in {self.case.loops[i].rank for i in self.outcome.alike.get(loop, (loop,))}:
                first[rank] = min(begin, first.get(rank, begin))
                last[rank] = max(end, last.get(rank, end))
        busy = max((last[rank] - first[rank] for rank in first), default=0.0)
        return max(machine.issue_us * together, self.case.launch + busy + self.time_us - self.outcome.time)

    @property
    def extrapolated(self) -> bool:
        """Returns whether a shorter call was run in its place."""
        return self.scale != 1

    def utilization(self, graph: PlanGraph) -> list[float]:
        """Per link: payload over what the link could carry in the whole time, nominal speed."""
        # Copy engines come after the links.
        carried = (b * self.scale for b in self.outcome.link_bytes)
        return [b / (float(x.gbps) * 1e3 * self.time_us) for b, x in zip(carried, graph.links, strict=False)]

    def row(self) -> dict[str, object]:
        """The JSON row that `collc simulate` and `collc bench` share."""
        return simulated_row(
            self.collective, self.root, self.nranks, self.bytes, self.variant.plan, self.variant.protocol, self.time_us
        )


class Simulator(Plans):
    """Predicts one collective on one graph; plans and lowered programs are kept between calls.

    Args:
        machine: parameters of the GPUs, kept as `parameters`; `machine` is what collc's kernels make of them.
        slots, round_slots: as in `Target` [the CUDA target's]; without `round_slots`, `slots` is for all FIFOs.
        of_nccl: NCCL's kernels run the programs.
    """

    def __init__(
        self,
        graph: PlanGraph,
        collective: Collective,
        root: int | None = None,
        machine: Machine = GENERIC,
        *,
        slots: int | None = None,
        round_slots: int | None = None,
        of_nccl: bool = False,
    ) -> None:
        if collective not in COMPILED:
            names = ", ".join(c.value for c in COMPILED)
            raise UsageError(f"no program exists for {collective.value}", hint=f"choose one of {names}")
        super().__init__(graph, collective, root)
        self.parameters, self.of_nccl = machine, of_nccl
        self.machine = machine if of_nccl else machine.of_own_kernels()
        self.target = CUDA
        if slots is not None:
            self.target = dataclasses.replace(CUDA, slots=slots, round_slots=round_slots or slots)
        self.rails = Rails(graph)
        self.programs: dict[tuple[str, int], tuple[Plan, Program]] = {}
        self.cases: dict[tuple[str, int, str], Case] = {}
        self.lumpers: dict[int, Lumper] = {}
        self.sized: dict[tuple[str, int, int], Program] = {}
        self.floors: dict[tuple[str, int, str], Floor] = {}
        # The sum over all runs: steps times (STEP_WORK + loops).
        self.work = 0

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """LL128 needs stores of 128 bytes that arrive whole, which only NVLink and its switches promise."""
        whole = all(x.kind in (LinkKind.NVLINK, LinkKind.NVSWITCH) for x in self.graph.links)
        return tuple(p for p in self.machine.protocols if whole or p.name != "LL128")

    def lowered(self, kind: str, channels: int) -> tuple[Plan, Program]:
        """The plan cut for a number of channels, and its verified program.

        Raises:
            UsageError: it would be too large.
        """
        key = (kind, channels)
        if key not in self.programs:
            self.programs[key] = self._lower(kind, channels)
        return self.programs[key]

    def _lower(self, kind: str, channels: int) -> tuple[Plan, Program]:
        plan = self.plan(kind)
        if kind == IN_SWITCH:
            return plan, lower_in_switch(plan, self.graph, self.target, channels, Recorder())
        size = self.fifos(kind, channels)
        if size > LARGEST_PROGRAM:
            problem = f"{kind} over {channels} channels is a program of {size} FIFOs, too large to simulate"
            raise UsageError(problem, hint="choose fewer --channels or another --plan")
        # A question may be about more channels than the target runs.
        target = dataclasses.replace(self.target, max_channels=max(CUDA.max_channels, channels))
        if kind == EVERYWHERE:
            return plan, lower_everywhere(self.plan("one-hop"), channels, self.graph, target, Recorder())
        return lower_spread(plan, channels, self.graph, target)

    def case(self, variant: Variant, count: int) -> Case:
        """A call of `count` elements of 4 bytes, cut by the protocol's slots."""
        protocol = self.machine.protocol(variant.protocol)
        _, program = self.lowered(variant.plan, variant.channels)
        chunk = max(LEAST_CHUNK, min(variant.chunk_bytes, protocol.max_chunk) // LEAST_CHUNK * LEAST_CHUNK)
        key = (variant.plan, variant.channels, protocol.name)
        if key not in self.cases:
            made = make_case(program, self.graph, self.machine, protocol, count, ELEMENT_BYTES)
            courier = self.machine.courier
            self.cases[key] = made if courier is None else with_couriers(made, program, self.rails, courier, protocol)
        sized = (variant.plan, variant.channels, chunk)
        if sized not in self.sized:
            self.sized[sized] = program.replace(chunk_bytes=chunk)
        return with_count(self.cases[key], self.sized[sized], count, ELEMENT_BYTES)

    def predict(self, variant: Variant, size: int, *, whole: bool = False) -> Prediction:
        """The time of a call of `size` bytes (nccl-tests' meaning).

        Args:
            whole: run every step, however many.
        """
        n = self.graph.nranks
        count = element_count(self.collective, size, ELEMENT_BYTES, n)
        total = call_bytes(self.collective, count, ELEMENT_BYTES, n)
        if n == 1:
            nothing = Case((), (), (), (), (0.0,) * len(self.graph.links), 2, self.machine.launch_us, 0.0, 0.0)
            idle = Outcome(self.machine.launch_us, (0.0,) * len(self.graph.links), ())
            return Prediction(self.collective, self.root, variant, 1, total, idle.time, nothing, idle, 1)
        case = self.case(variant, count)
        small = self._lumped(case).case
        steps = small.executions
        # At least eight chunks of every share: fewer say nothing of a pipeline.
        limit = max(WHOLE_RUN[compiled.available()], 8 * sum(small.steps_of))
        if steps > limit and not whole:
            _require_feasible(limit, len(small.loops))
            found = self._extrapolated(variant, count, steps, limit)
            if found is not None:
                time, short, outcome, scale = found
                return Prediction(self.collective, self.root, variant, n, total, time, short, outcome, scale)
        _require_feasible(steps, len(small.loops))
        outcome = self._run(case)
        return Prediction(self.collective, self.root, variant, n, total, outcome.time, case, outcome, 1)

    def floor_us(self, variant: Variant, size: int) -> float:
        """A time that no call of the variant undercuts; far cheaper than `predict`."""
        key = (variant.plan, variant.channels, variant.protocol)
        protocol = self.machine.protocol(variant.protocol)
        if key not in self.floors:
            plan = self.spread(variant.plan, variant.channels)
            slots = slots_of(plan, self.graph, self.target)
            self.floors[key] = Floor(plan, self.graph, self.machine, protocol, slots, self.rails)
        return self.floors[key].time_us(size, min(variant.chunk_bytes, protocol.max_chunk))

    def estimate(self, variant: Variant, size: int, most_steps: int) -> Prediction:
        """Does the same as `predict`, but runs a call of more than `most_steps` at a size smaller by factors of four.

        Its time grows as its floor does: where pipelines are full, both grow with the bytes.
        """
        short = size
        while self.steps(variant, short) > most_steps and short > size >> 10:
            short >>= 2
        found = self.predict(variant, short)
        if short == size:
            return found
        n = self.graph.nranks
        count = element_count(self.collective, size, ELEMENT_BYTES, n)
        total = call_bytes(self.collective, count, ELEMENT_BYTES, n)
        grown = self.floor_us(variant, size) / self.floor_us(variant, short)
        scale = found.scale * total / found.bytes
        return dataclasses.replace(found, bytes=total, time_us=found.time_us * grown, scale=scale)

    def extended(self, variant: Variant, size: int, known: int) -> Prediction:
        """Predicts from calls of `known` bytes and a quarter of that: with full pipelines, a byte adds equal time."""
        quarter, found = self.predict(variant, known >> 2), self.predict(variant, known)
        n = self.graph.nranks
        count = element_count(self.collective, size, ELEMENT_BYTES, n)
        total = call_bytes(self.collective, count, ELEMENT_BYTES, n)
        each = (found.time_us - quarter.time_us) / (found.bytes - quarter.bytes)
        time = found.time_us + each * (total - found.bytes)
        return dataclasses.replace(found, bytes=total, time_us=time, scale=found.scale * total / found.bytes)

    def steps(self, variant: Variant, size: int) -> int:
        """About as many steps as a call of the variant has: one per hop and chunk."""
        plan = self.spread(variant.plan, variant.channels)
        assert plan.rate is not None
        chunks = (math.ceil(size * tree.weight / plan.rate / variant.chunk_bytes) for tree in plan.trees)
        return sum(n * (len(t.reduce) + len(t.broadcast)) for n, t in zip(chunks, plan.trees, strict=True))

    def _extrapolated(
        self, variant: Variant, count: int, steps: int, limit: int
    ) -> tuple[float, Case, Outcome, float] | None:
        """Once pipelines are full, time grows by the same amount per byte; None where it does not yet.

        The shorter calls have fewer chunks of the same size: of other sizes their steps would cost another share.
        """
        number, each, last = max(self.case(variant, count).chunks, key=lambda chunks: chunks[0] * chunks[1])
        chunks = [int(number * limit * part / steps) for part in (0.25, 0.5, 1)]
        counts = [int(count * n * each / ((number - 1) * each + last)) // 1024 * 1024 for n in chunks]
        if counts[0] < 1024:
            return None
        cases = [self.case(variant, c) for c in counts]
        outcomes = [self._run(case) for case in cases]
        first, second = ((outcomes[i + 1].time - outcomes[i].time) / (counts[i + 1] - counts[i]) for i in range(2))
        if abs(first - second) > STEADY * second:
            return None
        time = outcomes[2].time + second * (count - counts[2])
        return time, cases[2], outcomes[2], count / counts[2]

    def _lumped(self, case: Case) -> Lumped:
        """The call with equal parts lumped together; small calls unchanged."""
        if case.executions <= LUMPED_FROM:
            return unlumped(case)
        # The lumper holds the loops, so their id stays theirs.
        key = id(case.loops)
        if key not in self.lumpers:
            self.lumpers[key] = Lumper(case)
        return self.lumpers[key].lump(case.chunks)

    def _run(self, case: Case) -> Outcome:
        lumped = self._lumped(case)
        self.work += lumped.case.executions * (STEP_WORK + len(lumped.case.loops))
        return lumped.unfold(run_fastest(lumped.case))


def _require_feasible(steps: int, loops: int) -> None:
    if steps > MOST_STEPS:
        raise UsageError(f"{steps} steps are too many to simulate", hint="choose a smaller -e")
    if steps * loops > MOST_WORK:
        problem = f"{steps} steps in {loops} loops that all differ are too many to simulate"
        raise UsageError(problem, hint="choose a smaller -e, or whole servers, whose symmetry saves most of the work")


def spans(outcome: Outcome) -> list[tuple[int, float, float]]:
    """(loop, begin of its first step, end of its last)."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    rows = outcome.executions
    if isinstance(rows, compiled.Executions):
        loop, _, _, begin, end = rows.columns[:5]
        for number in np.unique(loop):
            mine = loop == number
            first[int(number)], last[int(number)] = float(begin[mine].min()), float(end[mine].max())
    else:
        for row in rows:
            first.setdefault(row.loop, row.begin)
            last[row.loop] = row.end
    return [(number, first[number], last[number]) for number in sorted(first)]


def own_channels(plan: Plan) -> int:
    """The channels that a plan has by itself, as far as the target runs them at once: one per tree, or per ring."""
    return min(rings_of(plan) if plan.kind in RINGS else len(plan.trees), CUDA.max_channels)


def switch_variants() -> list[Variant]:
    """Programs inside a switch, over Simple: their channels and chunk sizes."""
    chunks = (16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10)
    return [Variant(IN_SWITCH, "Simple", chunk, channels) for channels in (4, 8, 16, 32) for chunk in chunks]


def variants(simulator: Simulator, kinds: Sequence[str] | None = None, most: int = MAX_CHUNK_BYTES) -> list[Variant]:
    """The grid that a choice is made from: plans, protocols, chunk sizes, channels.

    Channels: the plan's own number of trees (rings: one per ring), two and four times that, and the most that the
    target runs at once; only the fewest if a program would have more than MOST_FIFOS. Chunks: from a line to a slot in
    factors of four; for rings, whose chunks make many hops, also one between the last two. A plan equal to an earlier
    one, such as the only ring, is left out.

    Args:
        most: bytes of a slot, at most [what the protocol has].
    """
    found = []
    seen: list[Plan] = []
    for kind in kinds if kinds is not None else simulator.kinds:
        plan = simulator.plan(kind)
        if any(plan.trees == other.trees for other in seen):
            continue
        seen.append(plan)
        own = own_channels(plan)
        counts = sorted({min(n, CUDA.max_channels) for n in (own, 2 * own, 4 * own, CUDA.max_channels)})
        if kind == EVERYWHERE:
            counts = EVERYWHERE_CHANNELS
        sizes = [4 << 10, 16 << 10, 64 << 10, 256 << 10]
        if kind in RINGS:
            counts = sorted({n // own * own for n in counts})
            sizes.insert(3, 128 << 10)
        counts = [n for n in counts if n == counts[0] or simulator.fifos(kind, n) <= MOST_FIFOS]
        for protocol in simulator.protocols:
            slot = min(protocol.max_chunk, most)
            chunks = [c for c in sizes if c < slot]
            for channels in counts:
                found += [Variant(kind, protocol.name, chunk, channels) for chunk in (*chunks, slot)]
    return found
