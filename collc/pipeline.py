"""The compiler, from a topology's graph to programs: every stage by name, in order, verified, timed and dumped.

    pack -> schedule -> build -> fuse_copies -> pipeline_hops [-> take_turns] -> merge_channels [-> share_hops]
         [-> share_slots] [-> reduce_everywhere] -> render -> compile

The stages from `build` on yield a `Program`, and each is verified before the next one runs. Nothing else calls a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from collc import packing
from collc.collectives.model import COMPILED, Collective
from collc.errors import IRError, UsageError
from collc.ir.build import build
from collc.ir.nodes import Program
from collc.ir.printer import print_program
from collc.ir.routes import verify_routes
from collc.ir.verify import verify
from collc.lowering.fuse_copies import fuse_copies
from collc.lowering.merge_channels import merge_channels
from collc.lowering.pipeline_hops import pipeline_hops
from collc.lowering.reduce_everywhere import reduce_everywhere
from collc.lowering.share_hops import share_hops
from collc.lowering.share_slots import share_slots
from collc.lowering.take_turns import take_turns
from collc.options import ROUND, Target
from collc.outputs import write_text
from collc.packing.candidates.plans import channels_of, has_copies, in_rounds, rings_of, spread
from collc.packing.check import check_packing
from collc.packing.model import RINGS, Plan
from collc.packing.solvers.store import SolutionStore
from collc.schedule.in_switch import schedule_in_switch
from collc.schedule.trees import schedule_trees
from collc.topology.model import PlanGraph

Pass = Callable[[Program], Program]
# Largest number that a pass takes from a command line.
MAX_PARAMETER = 4096


@dataclass
class Recorder:
    """Records of a run: timings per stage, IR of chosen stages as text, and where packings are kept."""

    dump_after: frozenset[str] = frozenset()
    dump_dir: Path = Path("collc-dump")
    seconds: dict[str, float] = field(default_factory=dict)
    written: list[Path] = field(default_factory=list)
    store: SolutionStore | None = None

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the seconds of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def dump(self, name: str, text: str) -> Path:
        """Writes a text into the folder for dumps and returns its path."""
        self.dump_dir.mkdir(parents=True, exist_ok=True)
        path = self.dump_dir / name
        write_text(path, text)
        self.written.append(path)
        return path


@dataclass(frozen=True)
class Lowering:
    """A pass by name. `parameter` is the keyword of its one number, if it takes one; `default` says it for a target.

    A new pass is one more row of `PASSES`, and a line of `passes` if a target always runs it.
    """

    run: Callable[..., Program]
    parameter: str | None = None
    default: Callable[[Target], int] = lambda target: 0

    def bound(self, target: Target, number: int | None = None) -> Pass:
        """The pass with its number, the target's own by default."""
        if self.parameter is None:
            return self.run
        return partial(self.run, **{self.parameter: self.default(target) if number is None else number})


PASSES: dict[str, Lowering] = {
    "fuse_copies": Lowering(fuse_copies),
    "pipeline_hops": Lowering(pipeline_hops, "slots", lambda target: target.slots),
    "take_turns": Lowering(take_turns, "limit", lambda target: target.max_channels),
    "merge_channels": Lowering(merge_channels, "limit", lambda target: target.max_channels),
    "share_hops": Lowering(share_hops, "limit", lambda target: target.max_channels),
    "share_slots": Lowering(share_slots),
    "reduce_everywhere": Lowering(reduce_everywhere, "channels", lambda target: 0),
}


def passes(target: Target, everywhere: bool = False, *, turns: bool = True, rounds: int = 0) -> list[tuple[str, Pass]]:
    """The lowering of a target, in order.

    Args:
        everywhere: lower a small all_reduce that every rank computes; `lower_everywhere` splits it into channels.
        turns: if slots are not shared, channels beyond the target's limit take turns, each block in another order.
        rounds: the number of rings that take turns, where all roots share the FIFO of a hop; 0: none.
    """
    names = ["fuse_copies", "pipeline_hops"]
    if rounds:
        own = {"merge_channels": rounds}
        return [(name, PASSES[name].bound(target, own.get(name))) for name in (*names, "merge_channels", "share_hops")]
    names += ["take_turns"] if turns and not target.shares_slots else []
    names += ["merge_channels"]
    names += ["share_slots"] if target.shares_slots else []
    names += ["reduce_everywhere"] if everywhere else []
    return [(name, PASSES[name].bound(target)) for name in names]


def parse_passes(text: str, target: Target) -> list[tuple[str, Pass]]:
    """Parses passes in the form of `collc opt`: names separated by commas, and ``merge_channels=2`` with a number.

    Raises:
        UsageError: no pass has this name, or its number makes no sense.
    """
    chosen: list[tuple[str, Pass]] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, given, number = word.partition("=")
        if name not in PASSES:
            raise UsageError(f"no pass {name!r}", hint=f"choose from {', '.join(PASSES)}")
        found = PASSES[name]
        if given and found.parameter is None:
            raise UsageError(f"{name} takes no number", hint=f"write {name}")
        if given and not (number.isdecimal() and 1 <= int(number[:6]) <= MAX_PARAMETER and len(number) <= 6):
            raise UsageError(f"{word}: {found.parameter} is a number from 1 to {MAX_PARAMETER}")
        chosen.append((name, found.bound(target, int(number) if given else None)))
    return chosen


def _unchanged(program: Program) -> Program:
    return program


def run_passes(program: Program, chosen: Sequence[tuple[str, Pass]], *, proved: bool = False) -> Program:
    """Runs passes on a program; with `proved` it is verified before the first and after each.

    Raises:
        IRError: a pass cannot take the program, or what it made does not hold; the message names the stage.
    """
    for name, run in [("input", _unchanged), *chosen]:
        try:
            program = run(program)
            if proved:
                verify(program)
        except IRError as error:
            raise IRError(f"{name}: {error.what}", where=error.where, hint=error.hint) from None
    return program


def stage_names(target: Target) -> list[str]:
    """Names for `--dump-after`: the stages that yield a program."""
    rounds = [] if target.shares_slots else ["share_hops"]
    return ["build", *(name for name, _ in passes(target, everywhere=True)), *rounds]


def pack(graph: PlanGraph, wanted: Sequence[tuple[Collective, int | None]], recorder: Recorder) -> tuple[Plan, ...]:
    """One checked plan for each collective and root."""
    plans = []
    for collective, root in wanted:
        with recorder.timed("pack"):
            plan = packing.plan(graph, collective, root, store=recorder.store)
            check_packing(graph, plan)
        plans.append(plan)
    return tuple(plans)


def lower(
    plan: Plan, graph: PlanGraph, target: Target, recorder: Recorder, suffix: str = "", *, everywhere: bool = False
) -> Program:
    """A checked plan -> a verified program for the target. `suffix` ends the name of dumped files."""
    with recorder.timed("schedule"):
        schedule = schedule_trees(plan, graph.nranks)
    label = plan.collective.value if plan.root is None else f"{plan.collective.value}-root{plan.root}"
    label += suffix
    with recorder.timed("build"):
        program = build(schedule, chunk_bytes=target.chunk_bytes, graph=graph)
    _finish("build", label, None, program, recorder)
    rounds = rings_of(plan) if takes_rounds(plan, graph, target) else 0
    for name, run in passes(target, everywhere, turns=has_copies(plan), rounds=rounds):
        before = program
        with recorder.timed(name):
            program = run(before)
        _finish(name, label, before, program, recorder)
    with recorder.timed("verify"):
        verify_routes(program, graph)
    return program


def lower_by(plan: Plan, graph: PlanGraph, chosen: Sequence[tuple[str, Pass]], target: Target) -> Program:
    """A plan lowered by passes of one's own choice (`parse_passes`), proved after each of them."""
    built = build(schedule_trees(plan, graph.nranks), chunk_bytes=target.chunk_bytes, graph=graph)
    program = run_passes(built, chosen, proved=True)
    verify_routes(program, graph)
    return program


def lower_spread(
    plan: Plan, channels: int, graph: PlanGraph, target: Target, recorder: Recorder | None = None, suffix: str = ""
) -> tuple[Plan, Program]:
    """The plan cut for a number of channels (0: as it is), and its verified program."""
    cut, most = plan, target.max_channels
    if channels:
        cut = spread(plan, channels)
        most = max(1, min(most, channels, channels_of(cut)))
    own = replace(target, max_channels=most, slots=slots_of(cut, graph, target))
    return cut, lower(cut, graph, own, recorder or Recorder(), suffix)


def lower_everywhere(plan: Plan, channels: int, graph: PlanGraph, target: Target, recorder: Recorder) -> Program:
    """Lowers a plan that joins all ranks to the verified program where each rank reduces all inputs.

    Args:
        channels: loops side by side.

    Raises:
        IRError: the plan is no such all_reduce.
    """
    suffix = f"-everywhere-x{channels}"
    before = lower(plan, graph, target, recorder, suffix)
    with recorder.timed("reduce_everywhere"):
        program = reduce_everywhere(before, channels)
    _finish("reduce_everywhere", plan.collective.value + suffix, before, program, recorder)
    with recorder.timed("verify"):
        verify_routes(program, graph)
    return program


def lower_in_switch(plan: Plan, graph: PlanGraph, target: Target, channels: int, recorder: Recorder) -> Program:
    """The program of `plan.in_switch`, verified: every one of `channels` loops serves a part of each head.

    Raises:
        PackingError: no switch of the plan copies or adds.
    """
    schedule = schedule_in_switch(plan, graph, channels)
    program = build(schedule, chunk_bytes=target.chunk_bytes, graph=graph)
    label = plan.collective.with_root(plan.root).replace(" ", "-") + "-in-switch"
    _finish("build", label, None, program, recorder)
    for name, run in (
        ("pipeline_hops", PASSES["pipeline_hops"].bound(target)),
        ("take_turns", PASSES["take_turns"].bound(target, channels)),
    ):
        before = program
        program = run(before)
        _finish(name, label, before, program, recorder)
    verify_routes(program, graph)
    return program


def takes_rounds(plan: Plan, graph: PlanGraph, target: Target) -> bool:
    """Returns whether the rings of a spread plan take turns and their roots share FIFOs, on GPUs of one server."""
    return in_rounds(plan) and not target.shares_slots and graph.nservers == 1


def slots_of(plan: Plan, graph: PlanGraph, target: Target) -> int:
    """Returns the slots per FIFO of a plan's program.

    A block that visits many FIFOs in turn has chunks in flight in each of them, so few slots are enough. Between
    servers a round takes too long for few slots.
    """
    alone = graph.nservers == 1
    rounds = plan.kind in RINGS and plan.root is None and graph.nranks >= ROUND and alone
    return min(target.slots, target.round_slots) if rounds else target.slots


def _finish(stage: str, label: str, before: Program | None, program: Program, recorder: Recorder) -> None:
    if stage in recorder.dump_after:
        recorder.dump(f"{label}.{stage}.ir", print_program(program))
    if program is before:
        return  # the pass changed nothing, and this program was verified before
    with recorder.timed("verify"):
        try:
            verify(program)
        except IRError as error:
            files = [recorder.dump(f"{label}.{stage}.bad.ir", print_program(program))]
            if before is not None:
                files.insert(0, recorder.dump(f"{label}.{stage}.good.ir", print_program(before)))
            saved = ", ".join(map(str, files))
            raise IRError(f"stage {stage} broke {label}: {error}", where=error.where, hint=f"saved: {saved}") from error


def wanted_programs(
    collectives: Sequence[Collective], nranks: int, roots: Sequence[int] | None = None
) -> list[tuple[Collective, int | None]]:
    """Every (collective, root) that a library for `nranks` ranks should hold; `roots` limits the rooted ones."""
    wanted: list[tuple[Collective, int | None]] = []
    for collective in COMPILED:
        if collective not in collectives:
            continue
        if not collective.rooted:
            wanted.append((collective, None))
            continue
        for root in range(nranks) if roots is None else dict.fromkeys(roots):
            if not 0 <= root < nranks:
                raise UsageError(f"root {root} is not a rank of 0..{nranks - 1}")
            wanted.append((collective, root))
    return wanted
