"""The main job as a library call: a topology in, a verified library out. `collc compile` is a thin shell over it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from collc.build.account import Part, accounted
from collc.build.compile import Library, Parts, compile_library
from collc.build.cuda import check_chip, find_toolkits
from collc.build.plans import SolutionCache
from collc.build.toolchain import find_cxx
from collc.checker.machine import ALL_BUT
from collc.choose.by_class import said_of_cards
from collc.choose.idle_links import AUTO, TRUST, uses_idle_links
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.choose.servers import ServerKind, server_kinds, wants_kinds
from collc.choose.strategy import MODELED_ALLOCATIONS
from collc.codegen.entry import Entry
from collc.collectives.model import COMPILED
from collc.collectives.sizes import short_size
from collc.errors import BuildError, CollcError, UsageError
from collc.options import TARGETS, TargetKind
from collc.outputs import check_output
from collc.packing.document import PlanFile
from collc.packing.model import Plan
from collc.packing.sets.gpu_sets import GpuSets
from collc.packing.sets.losses import Row
from collc.pipeline import Recorder
from collc.topology.allocation import parse_gpus
from collc.topology.model import LinkKind, Topology
from collc.topology.probe.models import find_model

BESIDE_NVLINK = (
    "large calls run over PCIe beside NVLink where that pays in the model, which no GPU has confirmed: so PCIe counts "
    f"with {float(TRUST):.0%} of its speed; --classes nvlink keeps to NVLink, COLLC_WEIGHTS=nvlink:1 does for one job "
    "(docs/classes.md)"
)

BY_RULE = (
    f"chunk sizes by a rule: the model is asked about up to {MODELED_ALLOCATIONS} sets of GPUs, each of one server"
)

NO_SETS = GpuSets(Topology("", (), (), {}), (), ())


@dataclass(frozen=True)
class CompileRequest(LibraryRequest):
    """A request to compile.

    Args:
        output: of the library [libcollc-NAME.so].
        target: [cuda where an nvcc is found].
        keep_source: where to leave the generated source.
        cuda: 12 takes only compilers of CUDA 12, whose code older drivers run; None: whatever is there.
        counters: kernels that count where their time goes, for `collc bench --breakdown` (target cuda).
        specialise: kernels of its own for the programs that are used most, whose steps are written out (target cuda).
        direct: kernels whose ranks read each other's buffers of ncclMemAlloc where they stand (target cuda).
        rebuild: use nothing that was built before: plans, objects, device code, the runtime of a wheel.
    """

    output: Path | None = None
    target: TargetKind | None = None
    keep_source: Path | None = None
    cuda: int | None = None
    counters: bool = False
    specialise: bool = False
    direct: bool = False
    rebuild: bool = False


@dataclass(frozen=True)
class CompileResult:
    """A built library with the plans inside it.

    Args:
        note: decisions that collc made for the user, such as the target.
        parameters: the parameter sets of GPUs that the model chose with; None if no model chose.
        parts: the parts of the library, each built or taken from a cache.
    """

    library: Library
    target: TargetKind
    documents: tuple[PlanFile, ...]
    gpu_sets: int
    note: str | None
    entries: tuple[tuple[Entry, ...], ...]
    parameters: str | None = None
    gpu_sets_held: GpuSets = NO_SETS
    parts: tuple[Part, ...] = ()

    def losses(self) -> list[Row]:
        """Returns the rates of the whole machine and after each loss that the library survives, for its largest set."""
        held, rows, at = self.gpu_sets_held, [], 0
        for state in held.states:
            own = held.sets[at : at + state.nsets]
            at += state.nsets
            if own:
                number = max(own, key=lambda one: len(one.gpus)).allocation
                document = self.documents[number]
                row = Row.of(state.loss, document.graph.nranks, document.fingerprint, document.plans, number)
                rows.append(replace(row, what=ALL_BUT + state.server) if state.server and not state.loss else row)
        return rows + [Row.without_plan(loss, why) for loss, why in held.fallen]

    @property
    def nprograms(self) -> int:
        """Programs of all allocations together."""
        return sum(map(len, self.entries))

    def summary(self) -> str:
        """One line per collective (rate, bound, trees, depth), or the number of allocations if there are several."""
        if len(self.documents) > 1:
            sizes = [document.graph.nranks for document in self.documents]
            lines = [f"{sizes.count(n)} distinct sets of {n} GPUs" for n in sorted(set(sizes))]
            lines.append(f"{self.gpu_sets} sets of GPUs in all, up to GPUs that may change places")
            if any("by a rule" in entry.why for entries in self.entries for entry in entries):
                lines.append(BY_RULE)
            return "\n".join(lines)
        lines = []
        for collective in COMPILED:
            held = self.documents[0].plans
            packed = [p for p in held if p.collective is collective and p.kind == "trees"]
            # Plans of several classes of links come first, then plans of only the fastest class.
            plans = list({plan.root: plan for plan in reversed(packed)}.values())[::-1]
            if not plans or plans[0].rate is None:
                continue
            slowest = min(plans, key=lambda plan: plan.rate or 0)
            assert slowest.rate is not None
            trees = max(len(plan.trees) for plan in plans)
            depth = max(tree.depth for plan in plans for tree in plan.trees)
            proof = "optimal" if all(plan.optimal for plan in plans) else f"bound {slowest.bound}"
            roots = f", {len(plans)} root{'s' * (len(plans) != 1)}" if collective.rooted else ""
            lines.append(
                f"{collective.value:<15}{float(slowest.rate):9.2f} GB/s ({slowest.rate}, {proof}): "
                f"{trees} tree{'s' * (trees != 1)}, depth {depth}{roots}"
            )
            lines += self._crossovers(plans[0])
        return "\n".join(lines)

    def table_of(self, packed: Plan) -> list[tuple[int, str, str]]:
        """(from bytes, variant, why) of the first allocation, for the collective and root of a plan."""
        plans = self.documents[0].plans
        found = []
        for entry in self.entries[0]:
            plan = plans[entry.plan]
            if (plan.collective, plan.root) == (packed.collective, packed.root) and entry.when.min_bytes is not None:
                kind = entry.kind(plan)
                chunk = short_size(entry.program.chunk_bytes)
                label = f"{kind}/{entry.when.protocol}/{chunk}x{len(entry.program.channels)}"
                found.append((entry.when.min_bytes, label, entry.why))
        return found

    def tables(self) -> dict[str, list[dict[str, object]]]:
        """The table of every collective, of its first root, as JSON values."""
        found: dict[str, list[dict[str, object]]] = {}
        for plan in self.documents[0].plans:
            if plan.collective.value not in found:
                rows = self.table_of(plan)
                found[plan.collective.value] = [{"min_bytes": b, "variant": v, "why": w} for b, v, w in rows]
        return found

    def _crossovers(self, packed: Plan) -> list[str]:
        """One line per entry of the table of a collective, where there is more than one."""
        rows = self.table_of(packed)
        width = max((len(label) for _, label, _ in rows), default=0)
        lines = [f"  from {least:>12} bytes: {label:<{width}}  {why}".rstrip() for least, label, why in rows]
        return lines if len(lines) > 1 else []


def compile_topology(
    request: CompileRequest, recorder: Recorder | None = None, status: Callable[[str], None] = lambda text: None
) -> CompileResult:
    """Compiles one topology.

    Raises:
        CollcError: the topology, the plans or the build failed; nothing is left at the output path.
    """
    with accounted(rebuild=request.rebuild) as account:
        result = _compile(request, recorder or Recorder(store=SolutionCache()), status)
    return replace(result, parts=tuple(account.parts))


def _settle_target(request: CompileRequest) -> tuple[TargetKind, str | None]:
    """The target of a request, and a line for the user where we chose it.

    Raises:
        CollcError: the options contradict each other.
    """
    option = "--model" if request.model is not None else "--params" if request.params is not None else None
    own = {"--counters": request.counters, "--specialise": request.specialise, "--in-switch": request.in_switch}
    own["--direct"] = request.direct
    own_kernels = next((option for option, given in own.items() if given), None)
    kind, note = choose_target(request.target, request.cuda, own_kernels, option)
    if kind is TargetKind.CUDA and (made := not_by_nvidia(request.machine())):
        asked = next((f for f, given in _FOR_CUDA.items() if getattr(request, given)), None)
        kind, note = _host_instead(request.machine().name, made, asked)
    if kind is TargetKind.CUDA and request.relay:
        raise UsageError(
            "an idle GPU runs no kernel of a library, so nothing would forward its data",
            where="--relay",
            hint="take --target host, whose ranks are processes; or let the idle GPUs join with --gpus",
        )
    return kind, note


def _compile(request: CompileRequest, recorder: Recorder, status: Callable[[str], None]) -> CompileResult:
    kind, note = _settle_target(request)
    target = TARGETS[kind]
    request = replace(request, may_relay=kind is TargetKind.HOST)
    out = request.output or Path(f"libcollc-{request.machine().name}.so")
    check_output(out)
    if request.keep_source is not None:
        check_output(request.keep_source, replaced=False)
    find_cxx()
    if kind is TargetKind.CUDA:
        check_device_code(request)
    with ExitStack() as running:
        parts: list[Parts] = []

        def start() -> None:
            """All errors of the input have been found by now: compilers run while programs are chosen."""
            parts.append(
                running.enter_context(
                    Parts(
                        kind,
                        cuda=request.cuda,
                        counters=request.counters,
                        survives=bool(request.survive or request.kinds),
                        specialises=request.specialise,
                        in_switch=request.in_switch,
                        direct=request.direct,
                    )
                )
            )

        contents = library_contents(
            request,
            target,
            recorder=recorder,
            status=status,
            packed=start,
        )
        with recorder.timed("compile"):
            library = compile_library(contents, target, out, parts[0], keep_source=request.keep_source, status=status)
    if request.classes == AUTO and uses_idle_links(contents):
        note = "; ".join(filter(None, (note, BESIDE_NVLINK)))
    if said := said_of_cards(request, target, contents):
        note = "; ".join(filter(None, (note, said)))
    found = len(contents.gpu_sets.sets)
    models = dict.fromkeys(request.parameters(document.graph.gpu_model)[1] for document in contents.documents)
    why = "; ".join(models) if kind is TargetKind.CUDA else None
    return CompileResult(library, kind, contents.documents, found, note, contents.entries, why, contents.gpu_sets)


@dataclass(frozen=True)
class KindsResult:
    """One library for each kind of server of a topology, in a folder. `others` are libraries that lay there before.

    Or one library for all kinds: then `folder` is None, and `built` has the kinds, each with that library.
    """

    folder: Path | None
    built: tuple[tuple[ServerKind, CompileResult], ...]
    others: tuple[Path, ...]


def compile_kinds(
    request: CompileRequest, recorder: Recorder | None = None, status: Callable[[str], None] = lambda text: None
) -> KindsResult | None:
    """Compiles a topology of several servers: a library ``libcollc-TOPOLOGY-SERVER.so`` for each kind of server, named
    by the kind's first server.

    Args:
        request: its `output` is the folder [libcollc-TOPOLOGY], which may be new; or a file ``*.so``, which is one
            library for all kinds.

    Returns:
        None if the request is for one library: a topology of one server, or GPUs that are named.

    Raises:
        CollcError: some server or the build failed; what was built before stays.
    """
    topology = request.machine()
    if request.server is not None or not wants_kinds(topology, request.gpus, request.allocations):
        return None
    if request.own:
        raise UsageError(f"{request.own} is for one set of GPUs", where=request.own, hint="choose the set with --gpus")
    kinds = server_kinds(topology, request.links)
    if request.output is not None and request.output.suffix == ".so" and not request.output.is_dir():
        return _one_for_all(request, kinds, recorder, status)
    if len(kinds) > 1 and (request.keep_source is not None or (recorder and recorder.dump_after)):
        raise UsageError(
            f"{topology.name} has {len(kinds)} kinds of servers, and each has a library with a source of its own",
            where="--keep-source and --dump-after",
            hint=f"choose one server with --gpus, such as {kinds[0].servers[0]}:0-{len(kinds[0].machine.gpus) - 1}",
        )
    for kind in kinds:
        one = replace(request, server=kind.servers[0])
        if _settle_target(one)[0] is TargetKind.CUDA:
            check_device_code(one)
    folder = request.output or Path(f"libcollc-{topology.name}")
    if folder.exists() and not folder.is_dir():
        raise UsageError("is not a folder", where=str(folder), hint="servers may differ: name a folder with -o")
    made = not folder.exists()
    if not folder.parent.is_dir():
        raise CollcError(f"there is no folder {folder.parent}", where=str(folder), hint="create the folder first")
    folder.mkdir(exist_ok=True)
    built = []
    try:
        with accounted(rebuild=request.rebuild):  # what several kinds share is built anew once
            for number, kind in enumerate(kinds, 1):
                step = f"server {kind.servers[0]}, {number} of {len(kinds)}: " if len(kinds) > 1 else ""
                one = replace(request, server=kind.servers[0], output=folder / f"libcollc-{kind.machine.name}.so")
                built.append((kind, compile_topology(one, recorder, _prefixed(status, step))))
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()
    own = {result.library.path.name for _, result in built}
    others = tuple(path for path in sorted(folder.glob("libcollc-*.so")) if path.name not in own)
    return KindsResult(folder, tuple(built), others)


def _one_for_all(
    request: CompileRequest, kinds: list[ServerKind], recorder: Recorder | None, status: Callable[[str], None]
) -> KindsResult:
    """One library that finds out at run time on which kind of server it is; where there is one kind, that kind's."""
    one = replace(request, kinds=True) if len(kinds) > 1 else replace(request, server=kinds[0].servers[0])
    result = compile_topology(one, recorder, status)
    return KindsResult(None, tuple((kind, result) for kind in kinds), ())


def _prefixed(status: Callable[[str], None], step: str) -> Callable[[str], None]:
    return lambda text: status(step + text)


_MAKERS = re.compile(r"\s*(amd|instinct|radeon|gfx\d|mi\d)", re.I)
# Options that ask for a library for GPUs, and their fields of a request.
_FOR_CUDA = {
    "--target cuda": "target",
    "--cuda": "cuda",
    "--counters": "counters",
    "--specialise": "specialise",
    "--in-switch": "in_switch",
    "--direct": "direct",
    "--model": "model",
    "--params": "params",
}


def not_by_nvidia(topology: Topology) -> str | None:
    """Returns the fact that shows AMD GPUs, their model or their links; None if there is none."""
    if topology.gpu_model and _MAKERS.match(topology.gpu_model):
        return topology.gpu_model
    return "xgmi links" if any(link.kind is LinkKind.XGMI for link in topology.links) else None


def _host_instead(name: str, made: str, asked: str | None) -> tuple[TargetKind, str]:
    """Returns the target for GPUs that are not NVIDIA's, and a line for the user about it.

    Raises:
        UsageError: target cuda, or what only that takes, was asked for.
    """
    if asked is not None:
        raise UsageError(
            f"{name} has GPUs by AMD ({made}), and libraries for target cuda run on NVIDIA's alone",
            where=asked,
            hint="--target host makes a library for CPUs; `collc plan`, `simulate` and `export` serve these GPUs too",
        )
    return TargetKind.HOST, f"target host, which runs on CPUs: there are no kernels for GPUs by AMD ({made})"


def check_device_code(request: CompileRequest) -> None:
    """Raises BuildError if there is no compiler of device code here, or none that makes code for the ranks' GPUs.

    A GPU passes if the topology names no model for it, or a model that collc does not know.
    """
    find_toolkits(request.cuda)
    topology = request.machine()
    every = [gpu.name for gpu in topology.gpus]
    chosen = set(every if request.gpus is None else parse_gpus(topology, request.gpus))
    servers = [name for name, members in topology.servers.items() if chosen & set(members)]
    for name in dict.fromkeys(topology.models.get(server, topology.gpu_model) for server in servers):
        known = find_model(name) if name is not None else None
        if name is not None and known is not None and known.sm is not None:
            check_chip(known.sm, name, request.cuda)


def choose_target(
    wanted: TargetKind | None, cuda: int | None = None, own_kernels: str | None = None, model: str | None = None
) -> tuple[TargetKind, str | None]:
    """The target, and a line for the user where we chose it. `model` is the option given that describes GPUs.

    Args:
        own_kernels: the option that asks for kernels that not every library has.
    """
    if wanted is TargetKind.HOST and cuda is not None:
        raise UsageError("--cuda chooses the compilers of --target cuda", hint="omit one of them")
    if wanted is TargetKind.HOST and own_kernels == "--counters":
        raise UsageError("--counters is for --target cuda", hint="libraries for host count without it")
    if wanted is TargetKind.HOST and own_kernels:
        raise UsageError(f"{own_kernels} is for --target cuda", hint="omit one of them")
    if wanted is TargetKind.HOST and model is not None:
        raise UsageError(
            f"{model} describes GPUs, for --target cuda", hint="omit one of them; `collc tune` measures a host"
        )
    if wanted is not None or cuda is not None or own_kernels is not None:
        return wanted or TargetKind.CUDA, None
    try:
        find_toolkits()
    except BuildError as error:
        ignored = "" if model is None else f"; {model}, which is for target cuda, is not used"
        return TargetKind.HOST, f"target host, which runs on CPUs: {error.what}{ignored}"
    return TargetKind.CUDA, None
