"""Links a library again from the runtime of this package, and compares the result with the library.

`collc.checker` proves tables, plans and the description of the machine from the bytes of the library. No such proof
exists for machine code, so this module compares code with the result of a new build. The library names the sources and
tools of its code. If this package and this machine have the same sources and tools, the library is linked again around
its tables, manifest, plans and device code, and every loaded byte must be equal. Loaded bytes include code,
relocations, the names of required libraries, constructors and program headers. The device code is then built again and
compared. If sources or tools differ, only the digest in the library's manifest vouches for a part, and the result says
so.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from collc import __version__
from collc.build.account import submit
from collc.build.cache import cached, content_key
from collc.build.compile import compilers_text, link_library, runtime_origin
from collc.build.cuda import DeviceCode, build_device_code, device_origin, embed
from collc.build.fatbin import Image
from collc.build.objects import compile_object, compile_source
from collc.build.prebuilt import Prebuilt, find_prebuilt
from collc.build.runtime import runtime_units
from collc.build.toolchain import Compiler, find_cxx
from collc.checker.elf import PARTS, Elf
from collc.checker.layout import ARRAYS, extents
from collc.checker.library import OBJECTS, Library, manifest_place, read_manifest
from collc.checker.manifest import digests_text, zero_digests
from collc.codegen.context import SourceContext, Table, layouts, link_classes
from collc.codegen.entry import Entry
from collc.codegen.render import render
from collc.codegen.specialise import Written, hot_programs, specialise
from collc.errors import BuildError, RunError
from collc.options import TargetKind
from collc.process import temporary_folder

CODE, DEVICE_CODE = "code", "device code"
# A fatbin begins with this word, its version and the size of its header.
_FATBIN = struct.pack("<IHH", 0xBA55ED50, 1, 16)
_FATBIN_ALIGNMENT = 16
_RECOMPILE = "compile it again"


@dataclass(frozen=True)
class Evidence:
    """The evidence for one part of a library.

    Args:
        part: the part of the library, for people.
        proved: whether the part is equal to a new build by this package. If not, only the digest in the library, which
            anyone can write, agrees with the part.
        why: the build that the part is equal to, or the reason why it could not be built again.
    """

    part: str
    proved: bool
    why: str

    def __str__(self) -> str:
        state = "proved" if self.proved else "only compared with the library's own digest"
        return f"{self.part}: {state}: {self.why}"


def check_code(path: Path, library: Library, status: Callable[[str], None] = lambda text: None) -> list[Evidence]:
    """Compares the code of a library, whose tables and plans are proved, with a new build by this package.

    Args:
        path: the library.
        library: the result of `check_library` for it.
        status: called with a text about the progress.

    Returns:
        The evidence for the code, and for the device code of a library for GPUs.

    Raises:
        RunError: the library names the sources and tools of this package, but its code is not made from them; or its
            manifest lists device code for no chip or driver.
    """
    kind = TargetKind(library.manifest["target"])
    device = _device_of(path, library) if kind is TargetKind.CUDA else None
    runtimes: list[_RuntimeVariant] = []
    try:
        compiler = find_cxx()
        runtimes, problem = _runtimes_of(library.manifest, kind, compiler)
    except BuildError as error:
        problem = error.what
    if kind is TargetKind.CUDA and device is None:
        problem = problem or "it holds no device code that can be read"
    if problem:
        evidence = [Evidence(CODE, False, problem)]
    else:
        status("linking it again")
        _check_relinked(path, library, compiler, runtimes, device)
        evidence = [Evidence(CODE, True, f"equal to collc {__version__}'s runtime, linked again by {compiler.version}")]
    if kind is TargetKind.CUDA:
        status("building its device code again")
        evidence.append(_check_device_code(path, library, device))
    return evidence


@dataclass(frozen=True)
class _RuntimeVariant:
    """A runtime that a library may have been linked with: whether it survives losses, and its prebuilt object."""

    survives: bool
    prebuilt: Prebuilt | None


def _runtimes_of(
    manifest: Mapping[str, Any], kind: TargetKind, compiler: Compiler
) -> tuple[list[_RuntimeVariant], str]:
    """Returns the runtimes of this package with the sources and tools of a library; if there are none, the reason.

    A library that survives losses contains states only if its machine can lose something. So both runtimes are
    candidates for a library without states.
    """
    runtimes, compilers = [], []
    for survives in (True,) if manifest.get("states") else (False, True):
        package_object = find_prebuilt(kind, compiler, survives=survives)
        for prebuilt in dict.fromkeys((package_object, None)):
            compilers.append(compilers_text(compiler, prebuilt))
            if runtime_origin(kind, compiler, prebuilt) == manifest["sources"].get("runtime"):
                runtimes.append(_RuntimeVariant(survives, prebuilt))
    if runtimes:
        return runtimes, ""
    if manifest["collc"] == __version__ and manifest["compiler"] not in compilers:
        return [], f"{manifest['compiler']} made it, and here is {compiler.version}"
    return [], _other_sources(manifest)


def _other_sources(manifest: Mapping[str, Any]) -> str:
    """Returns the reason why a part cannot be built again: another version, or other sources or tools."""
    if manifest["collc"] != __version__:
        return f"collc {manifest['collc']} made it, and this is collc {__version__}"
    return "other sources or tools than those here made it"


def _check_relinked(
    path: Path, library: Library, compiler: Compiler, runtimes: list[_RuntimeVariant], device: DeviceCode | None
) -> None:
    """Raises RunError unless the library is equal to one that is linked from this package's runtime."""
    differences: list[list[str]] = []
    for runtime, fatbin in product(runtimes, _device_variants(library, device)):
        objects = _runtime_objects(TargetKind(library.manifest["target"]), compiler, runtime)
        with temporary_folder() as folder:
            objects.append(_tables_object(path, library, compiler, folder))
            objects += [embed(fatbin, compiler)] if fatbin else []
            linked = folder / "library.so"
            link_library(compiler, objects, linked)
            loaded = read_manifest(linked)["loaded"]
        differences.append([part for part in PARTS if loaded[part] != library.manifest["loaded"][part]])
        if not differences[-1]:
            return
    closest = min(differences, key=len)
    raise RunError(
        f"it differs from what its sources and tools make ({', '.join(closest)}): it was changed and signed again",
        where=str(path),
        hint=_RECOMPILE,
    )


def _device_variants(library: Library, device: DeviceCode | None) -> list[DeviceCode | None]:
    """Returns the device code without and with the symbol of kernels for programs inside a switch.

    The manifest does not name this option. A library with this option contains such programs only if its machine has
    such switches. If the library contains one, the result has only the device code with the symbol.
    """
    if device is None:
        return [None]
    programs = [program for allocation in library.tables.allocations for program in allocation.programs]
    in_switch = any(program.in_switch for program in programs)
    return [replace(device, in_switch=flag) for flag in ((True,) if in_switch else (False, True))]


def _runtime_objects(kind: TargetKind, compiler: Compiler, runtime: _RuntimeVariant) -> list[Path]:
    """Returns the objects of a runtime: the prebuilt one, or the compiled units."""
    if runtime.prebuilt is not None:
        return [runtime.prebuilt.unpacked()]
    with ThreadPoolExecutor() as pool:
        units = runtime_units(kind, compiler, survives=runtime.survives)
        return [job.result() for job in [submit(pool, compile_object, unit, compiler) for unit in units]]


def _tables_object(path: Path, library: Library, compiler: Compiler, folder: Path) -> Path:
    """Returns the object of the tables, manifest and plans of a library, as the linker gets it in a build.

    The compiler lays out objects of the same sizes that contain zeros, so that its time does not depend on the library.
    Then the bytes of the library replace the zeros. The digests in the manifest stay zeros until the library is signed.
    """
    with Elf(path) as elf:
        objects = {name: data for name, (_, data) in elf.objects(OBJECTS).items()}
        begin, end = manifest_place(elf, library.manifest)
        start = elf.objects(OBJECTS)["collc_manifest"][0]
    image, plan, manifest = objects["collc_tables"], objects["collc_plan"], bytearray(objects["collc_manifest"])
    manifest[begin - start : end - start] = digests_text(zero_digests())
    source = render(
        SourceContext(
            version=__version__,
            fingerprint="",
            layouts=layouts(),
            link_classes=link_classes(),
            tables=tuple(
                Table(array, ARRAYS[array][1], count, max(count, 1), first, ())
                for array, (first, count) in extents(image).items()
            ),
            image_size=len(image),
            digest=int.from_bytes(image[:8], "little"),
            manifest_rows=(),
            manifest_size=len(manifest) - 1,
            plan_rows=(),
            plan_size=len(plan),
        )
    )
    data = bytearray(compile_source(source, "tables", compiler).read_bytes())
    _put(data, {"collc_own_tables": image, "collc_manifest": bytes(manifest), "collc_plan": plan}, path)
    output = folder / "tables.o"
    output.write_bytes(data)
    return output


def _put(data: bytearray, contents: Mapping[str, bytes], path: Path) -> None:
    """Writes the contents of some symbols into an object file."""
    elf = ELFFile(BytesIO(bytes(data)))
    symbols = elf.get_section_by_name(".symtab")
    assert isinstance(symbols, SymbolTableSection)
    for name, content in contents.items():
        symbol = (symbols.get_symbol_by_name(name) or [])[0]
        if symbol["st_size"] != len(content):
            raise RunError(f"its {name} has another size than the compiler gives it", where=str(path), hint=_RECOMPILE)
        offset = elf.get_section(symbol["st_shndx"])["sh_offset"] + symbol["st_value"]
        data[offset : offset + len(content)] = content


def _device_of(path: Path, library: Library) -> DeviceCode | None:
    """Returns the device code of a library, as `embed` takes it; None if the library has no readable fatbin.

    Raises:
        RunError: the manifest lists device code for no chip or driver.
    """
    manifest, images = library.manifest, []
    for row in manifest.get("device_code", ()):
        code = re.fullmatch(r"(sm_|PTX )(\d{1,3})(?:\.(\d))?", row["code"])
        # `embed` writes these texts into assembler source, so they must not contain other characters.
        if code is None or not re.fullmatch(r"[0-9.]{1,20}|unknown", row["driver"]):
            raise RunError("its manifest lists device code for no chip or driver", where=str(path), hint=_RECOMPILE)
        kind = "elf" if code[1] == "sm_" else "ptx"
        images.append(Image(kind, code[2] + (code[3] or ""), path, row["compiler"], row["driver"]))
    data = _fatbin_of(path.read_bytes())
    if data is None:
        return None
    key = content_key(["fatbin of a library", data])
    fatbin = cached(key, "collc.fatbin", lambda output: _write(output, data))
    direct, counters = bool(manifest.get("direct")), bool(manifest.get("counters"))
    return DeviceCode(fatbin, tuple(images), counters, _specialized_kernels(library), direct)


def _write(output: Path, data: bytes) -> None:
    output.write_bytes(data)


def _fatbin_of(data: bytes) -> bytes | None:
    """Returns the first fatbin in the bytes of a library; None if there is none."""
    begin = data.find(_FATBIN)
    while begin >= 0:
        size = 16 + int.from_bytes(data[begin + 8 : begin + 16], "little")
        if begin % _FATBIN_ALIGNMENT == 0 and begin + size <= len(data):
            return data[begin : begin + size]
        begin = data.find(_FATBIN, begin + 1)
    return None


def _specialized_kernels(library: Library) -> Written | None:
    """Returns the specialized kernels of a library; None if it has none."""
    if not library.manifest.get("specialised"):
        return None
    entries = [
        [Entry(program, 0, when=when) for program, when in zip(allocation.programs, allocation.when, strict=True)]
        for allocation in library.tables.allocations
    ]
    return specialise(__version__, hot_programs(entries))


def _check_device_code(path: Path, library: Library, device: DeviceCode | None) -> Evidence:
    """Compares the device code of a library with a new build of this package's kernels by the local compilers.

    Raises:
        RunError: the library names these compilers and kernels, but contains other device code.
    """
    if device is None:
        return Evidence(DEVICE_CODE, False, "it cannot be read")
    problem = _other_sources(library.manifest)
    for variant, cuda in product(_device_variants(library, device), (None, 12)):
        assert variant is not None
        options = (cuda, variant.counters, variant.written, variant.in_switch, variant.direct)
        try:
            if device_origin(*options) != library.manifest["sources"].get("device"):
                continue
            build = build_device_code(*options)
        except BuildError as error:
            problem = error.what
            continue
        if build.fatbin.read_bytes() != device.fatbin.read_bytes() or build.rows() != device.rows():
            raise RunError(
                "its device code is not what its sources and tools make: it was changed and signed again",
                where=str(path),
                hint=_RECOMPILE,
            )
        compilers = " and ".join(dict.fromkeys(image.compiler for image in build.images))
        return Evidence(DEVICE_CODE, True, f"equal to collc {__version__}'s kernels, built again by {compilers}")
    return Evidence(DEVICE_CODE, False, problem)
