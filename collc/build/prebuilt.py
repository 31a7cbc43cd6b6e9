"""Builds and finds the prebuilt runtime: objects of a platform wheel, one per target and kind of library.

Even the first library then compiles only its tables and, for CUDA, the device code.

The object contains the parts of the C++ library that the runtime uses. So the machine that links it needs only the C
library and libgcc, and another release of libstdc++ there cannot mix its layouts and symbols with the object's.
Symbols of the C library get their versions when the object is linked. The object is refused if the C library is older
than the one whose headers it was built with.

The object is used only if it was built from the installed sources with the current flags, and if its bytes have the
digest in the index. Otherwise the runtime is compiled, as in a clone of the repository.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from collc.build.account import WHEEL, current, submit
from collc.build.cache import cached, content_key
from collc.build.objects import COMPILE_FLAGS, compile_object
from collc.build.runtime import Unit, headers, runtime_units
from collc.build.toolchain import Compiler, ask, find_cxx, run_tool
from collc.errors import BuildError
from collc.options import TargetKind
from collc.process import temporary_folder

_LOG = logging.getLogger("collc")
_PACKAGE = Path(__file__).resolve().parent.parent
FORMAT, INDEX = "collc-prebuilt/1", "prebuilt.json"
JOIN_FLAGS = ("-r", "-nostdlib")


@dataclass(frozen=True)
class Prebuilt:
    """The runtime of one target as an object.

    Args:
        sha256: the digest of its bytes.
        compiler: the first line of the version of the compiler that built it.
        data: the bytes of the object.
    """

    sha256: str
    compiler: str
    data: bytes

    def unpacked(self) -> Path:
        """Returns the path of the object in the cache. It has the bytes that were compared with the digest."""
        key = content_key(["prebuilt", self.sha256])

        def copy(output: Path) -> None:
            output.write_bytes(self.data)

        return cached(key, "runtime.o", copy, origin=WHEEL)


def folder() -> Path:
    """Returns the folder of prebuilt objects in the package; only platform wheels have it."""
    return _PACKAGE / "_data" / "prebuilt"


def inputs_digest(units: Sequence[Unit]) -> str:
    """Returns a digest of everything that the objects of some units depend on, except the compiler."""
    parts: list[str | bytes] = [*COMPILE_FLAGS]
    for unit in units:
        parts += [unit.name, unit.level, *unit.flags, unit.text, *unit.contents]
    return content_key([*parts, *(path.read_bytes() for path in headers())])


def find_prebuilt(kind: TargetKind, compiler: Compiler, *, survives: bool) -> Prebuilt | None:
    """Returns the prebuilt runtime of this package for a target.

    None if the package has none, if it does not fit the machine, the compiler or the sources, or during a rebuild. If
    it is damaged, the function logs a warning and returns None.

    Args:
        survives: for a library that survives losses.
    """
    index_file = folder() / INDEX
    if current().rebuild or not index_file.exists():
        return None
    try:
        index = json.loads(index_file.read_text(encoding="ascii"))
        if index["format"] != FORMAT or not _fits(index["machine"], index["glibc"], compiler):
            return None
        entry = index["objects"][_name(kind, survives)]
        if entry["inputs"] != inputs_digest(runtime_units(kind, compiler, survives=survives)):
            return None  # somebody has changed the sources
        data = (folder() / entry["file"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise ValueError(f"{entry['file']} is not the file that was built")
        return Prebuilt(entry["sha256"], index["compiler"], data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _LOG.warning("the runtime that came with collc is damaged (%s): building it; install collc again", error)
        return None


def _fits(machine: str, glibc: str, compiler: Compiler) -> bool:
    """Returns whether this machine can link and run an object that was built on `machine` with this glibc."""
    local_glibc = c_library()
    # x86_64-linux-gnu, x86_64-redhat-linux; not -musl, -gnux32 or -android.
    match = re.fullmatch(rf"{re.escape(machine)}-(\w+-)?linux(-gnu)?", compiler.machine)
    return match is not None and local_glibc is not None and local_glibc >= _version_numbers(glibc)


def c_library() -> tuple[int, ...] | None:
    """Returns the version of this machine's glibc; None for another C library."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return None
    return _version_numbers(text.removeprefix("glibc ")) if text.startswith("glibc ") else None


def _version_numbers(version: str) -> tuple[int, ...]:
    """Returns the first two numbers of a version."""
    return tuple(int(part) for part in version.split(".")[:2])


def _name(kind: TargetKind, survives: bool) -> str:
    """Returns the name of an object in the index."""
    return f"{kind.value}-survive" if survives else kind.value


def build_prebuilt(out: Path, targets: Sequence[TargetKind] = tuple(TargetKind)) -> str:
    """Builds the objects of some targets and their index in the folder `out`, with the compiler that collc uses.

    Returns:
        The platform tag of a wheel with these objects, such as manylinux_2_36_x86_64.

    Raises:
        BuildError: the compiler failed, or it does not build for Linux with glibc.
    """
    compiler = find_cxx()
    machine, glibc = compiler.machine.partition("-")[0], _glibc_of(compiler)
    objects = {}
    for kind, survives in itertools.product(targets, (False, True)):
        units = runtime_units(kind, compiler, survives=survives)
        name = _name(kind, survives)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            jobs = [submit(pool, compile_object, unit, compiler) for unit in units]
            data = _join([job.result() for job in jobs], compiler).read_bytes()
        (out / f"{name}.o").write_bytes(data)
        digests = {"inputs": inputs_digest(units), "sha256": hashlib.sha256(data).hexdigest()}
        objects[name] = {"file": f"{name}.o", **digests}
    index = {"format": FORMAT, "machine": machine, "glibc": glibc, "compiler": compiler.version, "objects": objects}
    (out / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="ascii")
    return f"manylinux_{glibc.replace('.', '_')}_{machine}"


def _glibc_of(compiler: Compiler) -> str:
    """Returns the version of glibc in the headers of a compiler, which may differ from the version on this machine."""
    with temporary_folder() as name:
        source, output = Path(name) / "glibc.cpp", Path(name) / "glibc.txt"
        source.write_text("#include <features.h>\n__GLIBC__.__GLIBC_MINOR__\n", encoding="ascii")
        run_tool([compiler.path, "-E", "-P", str(source), "-o", str(output)])
        lines = output.read_text(encoding="utf-8").split("\n")
    version = "".join(lines[-2].split()) if len(lines) > 1 else ""
    if not re.fullmatch(r"\d+\.\d+", version):
        raise BuildError(
            "does not build for Linux with glibc", where=compiler.path, hint="set COLLC_CXX to one that does"
        )
    return version


def _join(objects: Sequence[Path], compiler: Compiler) -> Path:
    """Returns one object that joins several objects with the parts of the C++ library that they use."""
    standard = Path(ask(compiler.path, "-print-file-name=libstdc++.a"))
    if not standard.is_absolute():
        raise BuildError("has no static C++ library", where=compiler.path, hint="install libstdc++.a")
    digest = hashlib.sha256(standard.read_bytes()).hexdigest()
    command = [compiler.path, *JOIN_FLAGS, *map(str, objects), str(standard)]
    key = content_key([compiler.version, *JOIN_FLAGS, digest, *(path.parent.name for path in objects)])
    return cached(key, "runtime.o", lambda output: run_tool([*command, "-o", str(output)]))
