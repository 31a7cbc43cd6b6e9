"""Builds a shared library with the NCCL API from plans and programs."""

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
from collc.packing.document import PlanFile, to_json
from collc.packing.sets.gpu_sets import GpuSets
from collc.packing.sets.nics import cards_of

_LOG = logging.getLogger("collc")
# nodelete: threads of the runtime may outlive a dlclose. static-libstdc++: the cluster need not have the C++ library of
# the build machine. libgcc_s is everywhere, and a copy of it would require the glibc of the build machine. Unused parts
# of the C++ library would too, so gc-sections drops them. Bsymbolic: another NCCL in the process may define the same
# names earlier, and must never get a handle of this library.
LINK_FLAGS = (
    *("-shared", "-pthread", "-ldl", "-static-libstdc++", "-Wl,--gc-sections", "-Wl,-Bsymbolic"),
    *("-Wl,-z,defs", "-Wl,-z,relro,-z,now", "-Wl,-z,nodelete", "-Wl,--exclude-libs,ALL"),
)
# The exported names: the names of NCCL, without versions as in NCCL, and the names that `collc verify` reads.
EXPORTS = "{ global: nccl*; pnccl*; collc_*; local: *; };\n"


class LinkError(BuildError):
    """The linker refuses the parts of a library."""


@dataclass(frozen=True)
class Library:
    """A built library: its path, its build id, its size in bytes, its device code (target cuda)."""

    path: Path
    build_id: str
    size: int
    device: DeviceCode | None = None


@dataclass(frozen=True)
class Contents:
    """The contents of a library.

    Attributes:
        documents: the plan file of each allocation.
        entries: the entries of each allocation. The entries of one collective and root are sorted by their bytes, with
            the entries for tuning last.
        gpu_sets: the GPU sets that the allocations serve.
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
    """Returns the generated source of a library and its build id. `source_context` describes the arguments."""
    context, build_id = source_context(contents, target, compiler, device, prebuilt)
    return render(context), build_id


def source_context(
    contents: Contents,
    target: Target,
    compiler: Compiler,
    device: DeviceCode | None = None,
    prebuilt: Prebuilt | None = None,
) -> tuple[SourceContext, str]:
    """Returns the context of the generated source, and the build id of the library.

    Args:
        device: the device code of the library; None for the host target.
        prebuilt: the prebuilt runtime of the library; None if the runtime is compiled.

    Raises:
        BuildError: a program needs a feature that the host target lacks.
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

    Libraries with the same name have equal code if both or neither survive losses, and if their tables, manifests and
    plans have equal sizes.
    """
    tools = [__version__, compiler.version, linker_version(compiler), str(c_library()), *LINK_FLAGS, EXPORTS]
    digest = prebuilt.sha256 if prebuilt else ""
    return content_key([*tools, inputs_digest(runtime_units(kind, compiler)), digest])


def compilers_text(compiler: Compiler, prebuilt: Prebuilt | None) -> str:
    """Returns the compilers of a library, as its manifest names them."""
    return f"{compiler.version}; runtime: {prebuilt.compiler}" if prebuilt else compiler.version


def _slices(data: bytes) -> list[bytes]:
    """Cuts data into slices of 24 bytes; the last one may be shorter."""
    return [data[begin : begin + 24] for begin in range(0, len(data), 24)]


def _byte_rows(data: bytes) -> tuple[str, ...]:
    return tuple(", ".join(map(str, row)) for row in _slices(data))


class Parts:
    """The parts of a library that do not depend on a topology.

    Entering the context starts to compile them in the background: planning takes at most one core, and the compilers
    use the others.

    Args:
        cuda: 12 takes only compilers of CUDA 12 for the device code.
        counters: kernels count their time (target cuda).
        survives: build the runtime of a library that survives losses.
        specialises: some programs get specialized kernels (target cuda), so the device code is built for this library
            by `specialise`.
        in_switch: add kernels of programs inside a switch.
        direct: add kernels that read the buffers of other ranks.
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
        self._survives, self._kernel_options = survives, (in_switch, direct)
        self._kind, self._cuda, self._counters, self._specialises = kind, cuda, counters, specialises
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)
        self._device: Future[DeviceCode] | None = None
        self._objects: list[Future[Path]] = []
        self.prebuilt: Prebuilt | None = None

    def __enter__(self) -> Parts:
        if self._kind is TargetKind.CUDA and not self._specialises:
            self._device = submit(
                self._pool, build_device_code, self._cuda, self._counters, None, *self._kernel_options
            )
        self.prebuilt = find_prebuilt(self._kind, self.compiler, survives=self._survives)
        if self.prebuilt:
            self._objects = [submit(self._pool, self.prebuilt.unpacked)]
        else:
            self.build_runtime()
        return self

    def build_runtime(self) -> None:
        """Starts to compile the runtime, even if the package has a prebuilt one."""
        self.prebuilt = None
        units = runtime_units(self._kind, self.compiler, survives=self._survives)
        self._objects = [submit(self._pool, compile_object, unit, self.compiler) for unit in units]

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def specialise(self, contents: Contents) -> None:
        """Starts to build the device code of a library with specialized kernels; does nothing for other libraries."""
        if self._kind is TargetKind.CUDA and self._specialises:
            written = specialise(__version__, hot_programs(contents.entries))
            options = (self._cuda, self._counters, written, *self._kernel_options)
            self._device = submit(self._pool, build_device_code, *options)

    def device(self) -> DeviceCode | None:
        """Waits for the device code and returns it; None for the host target."""
        return self._device.result() if self._device else None

    def objects(self, tables: str, done: Callable[[int, int], None] = lambda count, total: None) -> list[Path]:
        """Waits for the objects of the runtime and of the generated source, and returns their paths.

        Args:
            tables: the generated source.
            done: called after each object with the number of finished objects and the number of all objects.
        """
        tables_job = submit(self._pool, compile_source, tables, "tables", self.compiler)
        jobs = [*self._objects, tables_job]
        for count, job in enumerate(as_completed(jobs), 1):
            job.result()  # raises the error of a compiler at once
            done(count, len(jobs))
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
    """Builds a library at `out`, and returns it. Writes the whole file or nothing.

    Args:
        keep_source: the file to write the generated source to, for readers.
        status: called with a text about the progress: the library, and the number of finished parts.
    """
    status(f"building {out}" + (": kernels" if target.kind is TargetKind.CUDA else ""))
    parts.specialise(contents)
    parts.device()
    try:
        library, build_id = _build(contents, target, out, parts, keep_source, status)
    except LinkError as error:
        if parts.prebuilt is None:
            raise
        # Linkers and C libraries of the same version may still differ.
        _LOG.warning("the runtime that came with collc cannot be linked here, so it is compiled: %s", error.what)
        parts.build_runtime()
        library, build_id = _build(contents, target, out, parts, keep_source, status)
    _copy_whole(library, out)
    return Library(out, build_id, out.stat().st_size, parts.device())


def _build(
    contents: Contents,
    target: Target,
    out: Path,
    parts: Parts,
    keep_source: Path | None,
    status: Callable[[str], None],
) -> tuple[Path, str]:
    """Returns the path of the library in the cache, and its build id."""
    compiler, device = parts.compiler, parts.device()
    source, build_id = generate(contents, target, compiler, device, parts.prebuilt)
    if keep_source is not None:
        write_text(keep_source, source)
    objects = parts.objects(source, lambda count, total: status(f"building {out}: {count} of {total} parts"))
    if device is not None:
        objects.append(embed(device, compiler))
    tools = [compiler.version, linker_version(compiler), *LINK_FLAGS, EXPORTS]
    key = content_key([*tools, build_id, *(path.parent.name for path in objects)])
    return cached(key, "library.so", lambda output: link_library(compiler, objects, output)), build_id


def link_library(compiler: Compiler, objects: Sequence[Path], output: Path) -> None:
    """Links the objects of a library at `output`, and signs it.

    Raises:
        LinkError: the linker refuses the objects.
    """
    exports = output.with_suffix(".map")
    exports.write_text(EXPORTS, encoding="ascii")
    script = f"-Wl,--version-script={exports}"
    try:
        run_tool([compiler.path, *map(str, objects), *LINK_FLAGS, script, "-o", str(output)])
    except BuildError as error:
        raise LinkError(error.what, where=error.where, hint=error.hint) from error
    sign(output)


def _copy_whole(library: Path, out: Path) -> None:
    """Copies a library to a temporary name and renames it, so that a running job never sees half of it."""
    try:
        with written_aside(out, 0o755) as aside:
            shutil.copyfile(library, aside)
    except OSError as error:
        raise BuildError(f"cannot write the library: {error.strerror}", where=str(out)) from error
