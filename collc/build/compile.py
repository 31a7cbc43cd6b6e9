"""Plans and programs -> a shared library with the NCCL API."""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collc import __version__
from collc.build.account import submit
from collc.build.cache import cached, content_key
from collc.build.cuda import DeviceCode, build_device_code, embed
from collc.build.manifest import make_manifest, manifest_text, sign, slot_bytes
from collc.build.objects import compile_object, compile_source
from collc.build.prebuilt import Prebuilt, c_library, find_prebuilt, inputs_digest
from collc.build.runtime import runtime_units
from collc.build.toolchain import Compiler, find_cxx, linker_version, run_tool
from collc.checker.machine import after_loss, read_machine
from collc.codegen.context import SourceContext, TableBuilder, layouts, link_classes
from collc.codegen.entry import Entry
from collc.codegen.render import render
from collc.codegen.specialise import hot_programs, specialise
from collc.errors import BuildError
from collc.options import Target, TargetKind
from collc.outputs import write_text, written_aside
from collc.packing.cards import cards_of
from collc.packing.document import PlanFile, to_json
from collc.packing.gpu_sets import GpuSets

_LOG = logging.getLogger("collc")
# nodelete: threads of the runtime may outlive a dlclose.
# static: the C++ library of the build machine need not be on the cluster. libgcc_s is everywhere, and a copy of it
# would ask for the build machine's glibc; so would what gc-sections drops of the C++ library.
# Bsymbolic: another NCCL in the process may define the same names earlier, and must never get a handle of ours.
LINK_FLAGS = (
    *("-shared", "-pthread", "-ldl", "-static-libstdc++", "-Wl,--gc-sections", "-Wl,-Bsymbolic"),
    *("-Wl,-z,defs", "-Wl,-z,relro,-z,now", "-Wl,-z,nodelete", "-Wl,--exclude-libs,ALL"),
)
# What others may see: NCCL's names, without versions as in NCCL, and what `collc verify` reads back.
EXPORTS = "{ global: nccl*; pnccl*; collc_*; local: *; };\n"


class LinkError(BuildError):
    """All parts are there, and the linker refuses them."""


@dataclass(frozen=True)
class Library:
    """A built library: where it is, its build id, its size in bytes, the device code in it (target cuda)."""

    path: Path
    build_id: str
    size: int
    device: DeviceCode | None = None


@dataclass(frozen=True)
class Contents:
    """The contents of a library: for every allocation its plans and its programs, and the GPU sets that they serve.

    The entries of one collective and root are sorted by their bytes, those for tuning last.
    """

    documents: tuple[PlanFile, ...]
    entries: tuple[tuple[Entry, ...], ...]
    gpu_sets: GpuSets


def generate(
    contents: Contents,
    target: Target,
    compiler: Compiler,
    device: DeviceCode | None = None,
    prebuilt: Prebuilt | None = None,
) -> tuple[str, str]:
    """The generated source and the build id of the library that it makes; arguments as `source_context` takes them."""
    context, build_id = source_context(contents, target, compiler, device, prebuilt)
    return render(context), build_id


def source_context(
    contents: Contents,
    target: Target,
    compiler: Compiler,
    device: DeviceCode | None = None,
    prebuilt: Prebuilt | None = None,
) -> tuple[SourceContext, str]:
    """The generated source, and the build id of the library made from it.

    Args:
        device: the device code that goes with it; None for the host target.
        prebuilt: the runtime that it is linked with; None where that is compiled.
    """
    tables = TableBuilder()
    graphs = [document.graph for document in contents.documents]
    for graph, entries in zip(graphs, contents.entries, strict=True):
        programs, when = [entry.program for entry in entries], [entry.when for entry in entries]
        if target.kind is TargetKind.HOST and any(program.in_switch for program in programs):
            raise BuildError("no switch adds or copies for the host target")
        if target.kind is TargetKind.HOST and any(program.takes_turns for program in programs):
            raise BuildError("no shares take turns in a FIFO of the host target")
        tables.add_allocation(programs, slot_bytes=slot_bytes(programs), when=when, graph=graph)
    tables.add_gpu_sets(contents.gpu_sets, graphs)
    tables.add_states(contents.gpu_sets, graphs)
    if len(graphs) == 1:
        tables.add_cards(cards_of(contents.gpu_sets.topology, graphs[0]))
    blob: dict[str, Any] = {
        "plans": [to_json(document) for document in contents.documents],
        "machine": contents.gpu_sets.machine(graphs),
    }
    plan = zlib.compress(json.dumps(blob, separators=(",", ":")).encode(), 9)
    image = tables.image()
    fatbin: list[str | bytes] = [device.fatbin.read_bytes(), device.text] if device else [b""]
    if device and device.counters:
        fatbin.append("counters")
    if device and device.direct:
        fatbin.append("direct")
    if device and device.written:
        fatbin.append(device.written.table)
    runtime = runtime_origin(target.kind, compiler, prebuilt)
    build_id = content_key([runtime, contents.documents[0].name, image, plan, *fatbin])[:32]
    compilers = compilers_text(compiler, prebuilt)
    manifest = make_manifest(contents.documents, contents.entries, contents.gpu_sets, target, compilers, build_id)
    manifest["sources"] = {"runtime": runtime} | ({"device": device.origin} if device else {})
    if contents.gpu_sets.states:
        machine = read_machine(blob["machine"], contents.documents[0].name)
        manifest["states"] = [after_loss(machine, changes, Path())[1] for changes in tables.losses()]
    if device:
        manifest["device_code"] = device.rows()
        if device.counters:
            manifest["counters"] = True
        if device.direct:
            manifest["direct"] = True
        if device.written:
            manifest["specialised"] = list(device.written.kernels)
    manifest_bytes = manifest_text(manifest).encode("ascii")
    context = SourceContext(
        version=__version__,
        fingerprint=contents.documents[0].fingerprint,
        layouts=layouts(),
        link_classes=link_classes(),
        tables=tables.tables(),
        image_size=len(image),
        digest=int.from_bytes(image[:8], "little"),
        manifest_rows=_byte_rows(manifest_bytes + b"\0"),
        manifest_size=len(manifest_bytes),
        plan_rows=_byte_rows(plan),
        plan_size=len(plan),
    )
    return context, build_id


def runtime_origin(kind: TargetKind, compiler: Compiler, prebuilt: Prebuilt | None) -> str:
    """Returns a name for the sources and tools of a library's code, without its device code.

    Libraries with one name, whose tables, manifests and plans have equal sizes, have equal code.
    """
    tools = [__version__, compiler.version, linker_version(compiler), str(c_library()), *LINK_FLAGS, EXPORTS]
    made = prebuilt.sha256 if prebuilt else ""
    return content_key([*tools, inputs_digest(runtime_units(kind, compiler)), made])


def compilers_text(compiler: Compiler, prebuilt: Prebuilt | None) -> str:
    """The compilers of a library as its manifest names them."""
    return f"{compiler.version}; runtime: {prebuilt.compiler}" if prebuilt else compiler.version


def _slices(data: bytes) -> list[bytes]:
    return [data[at : at + 24] for at in range(0, len(data), 24)]


def _byte_rows(data: bytes) -> tuple[str, ...]:
    return tuple(", ".join(map(str, row)) for row in _slices(data))


class Parts:
    """The parts of a library that do not depend on a topology.

    Entering the context starts compiling them in the background: planning takes one core at most, the compilers take
    the others.

    Args:
        cuda: 12 takes only compilers of CUDA 12 for the device code.
        counters: kernels that count where their time goes (target cuda).
        specialises: some programs get kernels whose steps are written out (target cuda), so that device code is built
            for this library.
        survives: for a library that survives losses.
        in_switch: kernels of programs inside a switch too.
        direct: kernels whose ranks read each other's buffers too.
    """

    def __init__(
        self,
        kind: TargetKind,
        *,
        cuda: int | None = None,
        counters: bool = False,
        survives: bool = False,
        specialises: bool = False,
        in_switch: bool = False,
        direct: bool = False,
    ) -> None:
        self.compiler = find_cxx()
        self._survives, self._more = survives, (in_switch, direct)
        self._kind, self._cuda, self._counters, self._specialises = kind, cuda, counters, specialises
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)
        self._device: Future[DeviceCode] | None = None
        self._objects: list[Future[Path]] = []
        self.prebuilt: Prebuilt | None = None

    def __enter__(self) -> Parts:
        if self._kind is TargetKind.CUDA and not self._specialises:
            self._device = submit(self._pool, build_device_code, self._cuda, self._counters, None, *self._more)
        self.prebuilt = find_prebuilt(self._kind, self.compiler, survives=self._survives)
        if self.prebuilt:
            self._objects = [submit(self._pool, self.prebuilt.unpacked)]
        else:
            self.build_runtime()
        return self

    def build_runtime(self) -> None:
        """Starts compiling the runtime, also where the package brings one."""
        self.prebuilt = None
        units = runtime_units(self._kind, self.compiler, survives=self._survives)
        self._objects = [submit(self._pool, compile_object, unit, self.compiler) for unit in units]

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def specialise(self, contents: Contents) -> None:
        """Builds the device code of a library that asks for kernels of its own."""
        if self._kind is TargetKind.CUDA and self._specialises:
            written = specialise(__version__, hot_programs(contents.entries))
            self._device = submit(self._pool, build_device_code, self._cuda, self._counters, written, *self._more)

    def device(self) -> DeviceCode | None:
        """The device code; None for the host target."""
        return self._device.result() if self._device else None

    def objects(self, tables: str, done: Callable[[int, int], None] = lambda made, of: None) -> list[Path]:
        """The objects of the runtime and of the source `tables`. `done` is told how many there are, of how many."""
        own = submit(self._pool, compile_source, tables, "tables", self.compiler)
        jobs = [*self._objects, own]
        for made, job in enumerate(as_completed(jobs), 1):
            job.result()  # raises at once what a compiler says
            done(made, len(jobs))
        return [job.result() for job in jobs]


def compile_library(
    contents: Contents,
    target: Target,
    out: Path,
    parts: Parts,
    *,
    keep_source: Path | None = None,
    status: Callable[[str], None] = lambda text: None,
) -> Library:
    """Builds a library at `out`; writes it whole or not at all.

    Args:
        status: is told what is being built, and how many of its parts are.
        keep_source: where to leave the generated source for reading.
    """
    status(f"building {out}" + (": kernels" if target.kind is TargetKind.CUDA else ""))
    parts.specialise(contents)
    parts.device()
    try:
        linked, build_id = _build(contents, target, out, parts, keep_source, status)
    except LinkError as error:
        if parts.prebuilt is None:
            raise
        # Linkers and C libraries differ in more than their versions say.
        _LOG.warning("the runtime that came with collc cannot be linked here, so it is compiled: %s", error.what)
        parts.build_runtime()
        linked, build_id = _build(contents, target, out, parts, keep_source, status)
    _install(linked, out)
    return Library(out, build_id, out.stat().st_size, parts.device())


def _build(
    contents: Contents,
    target: Target,
    out: Path,
    parts: Parts,
    keep_source: Path | None,
    status: Callable[[str], None],
) -> tuple[Path, str]:
    """A library in the cache, and its build id."""
    compiler, device = parts.compiler, parts.device()
    source, build_id = generate(contents, target, compiler, device, parts.prebuilt)
    if keep_source is not None:
        write_text(keep_source, source)
    objects = parts.objects(source, lambda made, of: status(f"building {out}: {made} of {of} parts"))
    if device is not None:
        objects.append(embed(device, compiler))
    tools = [compiler.version, linker_version(compiler), *LINK_FLAGS, EXPORTS]
    key = content_key([*tools, build_id, *(path.parent.name for path in objects)])
    return cached(key, "library.so", lambda made: link_library(compiler, objects, made)), build_id


def link_library(compiler: Compiler, objects: Sequence[Path], made: Path) -> None:
    """Links the objects of a library and signs it; raises LinkError if the linker refuses them."""
    exports = made.with_suffix(".map")
    exports.write_text(EXPORTS, encoding="ascii")
    script = f"-Wl,--version-script={exports}"
    try:
        run_tool([compiler.path, *map(str, objects), *LINK_FLAGS, script, "-o", str(made)])
    except BuildError as error:
        raise LinkError(error.what, where=error.where, hint=error.hint) from error
    sign(made)


def _install(linked: Path, out: Path) -> None:
    """Copies to a temporary name and renames, so that a running job never sees half a library."""
    try:
        with written_aside(out, 0o755) as aside:
            shutil.copyfile(linked, aside)
    except OSError as error:
        raise BuildError(f"cannot write the library: {error.strerror}", where=str(out)) from error
