"""The main job as a library call: a topology in, a verified library out. `collc compile` is a thin shell over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collc.build.compile import Library, compile_library
from collc.build.manifest import tree_depth
from collc.errors import UsageError
from collc.ir.nodes import Program
from collc.options import TARGETS, Target, TargetKind
from collc.packing.document import PlanFile
from collc.packing.model import Collective
from collc.pipeline import COMPILED, Recorder, lower, pack, wanted_programs
from collc.topology.allocation import parse_gpus
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology


@dataclass(frozen=True)
class CompileRequest:
    """What to compile. `topology` is a path or a zoo name; None stands for the default of `collc compile`."""

    topology: str
    output: Path | None = None
    target: TargetKind | None = None
    gpus: str | None = None
    links: str | None = None
    collectives: Sequence[Collective] = COMPILED
    roots: Sequence[int] | None = None
    keep_source: Path | None = None


@dataclass(frozen=True)
class CompileResult:
    """A built library with the plans inside it. `note` says what was decided for the user."""

    library: Library
    target: TargetKind
    document: PlanFile
    note: str | None

    def summary(self) -> str:
        """One line per collective: rate, bound, trees, depth."""
        lines = []
        for collective in COMPILED:
            plans = [plan for plan in self.document.plans if plan.collective is collective]
            if not plans or plans[0].rate is None:
                continue
            slowest = min(plans, key=lambda plan: plan.rate or 0)
            assert slowest.rate is not None
            trees = max(len(plan.trees) for plan in plans)
            depth = max(tree_depth(tree) for plan in plans for tree in plan.trees)
            proof = "optimal" if all(plan.optimal for plan in plans) else f"bound {slowest.bound}"
            roots = f", {len(plans)} roots" if collective.rooted else ""
            lines.append(
                f"{collective.value:<15}{float(slowest.rate):9.2f} GB/s ({slowest.rate}, {proof}): "
                f"{trees} trees, depth {depth}{roots}"
            )
        return "\n".join(lines)


def make_document(request: CompileRequest, recorder: Recorder, status: Callable[[str], None]) -> PlanFile:
    """Reads, packs and proves: everything before code."""
    status("reading the topology")
    topology = load_topology(request.topology)
    gpus = parse_gpus(topology, request.gpus) if request.gpus else None
    graph = plan_graph(topology, gpus, request.links)
    servers = {graph.servers[rank] for rank in graph.ranks}
    if len(servers) > 1:
        raise UsageError(
            f"{topology.name} spans {len(servers)} servers, and libraries run inside one server so far",
            where=request.topology,
            hint="choose the GPUs of one server with --gpus; `collc plan` takes several",
        )
    wanted = wanted_programs(request.collectives, graph.nranks, request.roots)
    status(f"packing {len(wanted)} plans for {graph.nranks} GPUs")
    plans = pack(graph, wanted, recorder)
    return PlanFile(topology.name, fingerprint(graph), graph, plans)


def compile_topology(
    request: CompileRequest, recorder: Recorder | None = None, status: Callable[[str], None] = lambda text: None
) -> CompileResult:
    """Compiles one topology.

    Raises:
        CollcError: the topology, the plans or the build failed; nothing is left at the output path.
    """
    recorder = recorder or Recorder()
    kind, note = choose_target(request.target)
    target = TARGETS[kind]
    document = make_document(request, recorder, status)
    programs = []
    for number, plan in enumerate(document.plans, 1):
        status(f"lowering {number}/{len(document.plans)}: {plan.collective.value}")
        programs.append(lower(plan, document.graph.nranks, target, recorder))
    out = request.output or Path(f"libcollc-{document.name}.so")
    status(f"building {out}")
    with recorder.timed("compile"):
        library = _build(document, programs, target, out, request.keep_source)
    return CompileResult(library, kind, document, note)


def choose_target(wanted: TargetKind | None) -> tuple[TargetKind, str | None]:
    """The target, and a line for the user where we chose it."""
    if wanted is not None:
        return wanted, None
    return TargetKind.HOST, "target host: this version builds for CPUs; see --target"


def _build(
    document: PlanFile, programs: Sequence[Program], target: Target, out: Path, keep_source: Path | None
) -> Library:
    if target.kind is TargetKind.HOST:
        return compile_library(document, programs, target, out, keep_source=keep_source)
    raise UsageError("the cuda target is not built into this version", hint="use --target host")
