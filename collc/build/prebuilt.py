"""The runtime as one object that a platform wheel brings, so that a first library compiles its tables alone.

The object holds what the runtime uses of the C++ library, so all that it needs where it is linked is the C library and
libgcc: layouts and symbols of another release of libstdc++ cannot meet its own. Symbols of the C library get their
versions there, and a C library older than the builder's is refused.

It is used only if it was built from the sources that are installed here, with the flags of today, and if its bytes are
those that were built. Otherwise the runtime is compiled, as from a clone.
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
        sha256: of its bytes.
        compiler: what built it, its version's first line.
        data: the object.
    """

    sha256: str
    compiler: str
    data: bytes

    def unpacked(self) -> Path:
        """The object in the cache: the bytes that were compared with the digest."""
        key = content_key(["prebuilt", self.sha256])

        def copy(made: Path) -> None:
            made.write_bytes(self.data)

        return cached(key, "runtime.o", copy, origin=WHEEL)


def folder() -> Path:
    """Where the package holds what was built for it; only platform wheels have it."""
    return _PACKAGE / "_data" / "prebuilt"


def inputs_digest(units: Sequence[Unit]) -> str:
    """Of everything that an object of these units depends on, but for the compiler."""
    parts: list[str | bytes] = [*COMPILE_FLAGS]
    for unit in units:
        parts += [unit.name, unit.level, *unit.flags, unit.text, *unit.contents]
    return content_key([*parts, *(path.read_bytes() for path in headers())])


def find_prebuilt(kind: TargetKind, compiler: Compiler, *, survives: bool) -> Prebuilt | None:
    """The runtime that this package brings for a target, if it may be used here."""
    place = folder() / INDEX
    if current().rebuild or not place.exists():
        return None
    try:
        index = json.loads(place.read_text(encoding="ascii"))
        if index["format"] != FORMAT or not _fits(index["machine"], index["glibc"], compiler):
            return None
        entry = index["objects"][_name(kind, survives)]
        if entry["inputs"] != inputs_digest(runtime_units(kind, compiler, survives=survives)):
            return None  # sources that somebody works on
        data = (folder() / entry["file"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise ValueError(f"{entry['file']} is not the file that was built")
        return Prebuilt(entry["sha256"], index["compiler"], data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _LOG.warning("the runtime that came with collc is damaged (%s): building it; install collc again", error)
        return None


def _fits(machine: str, glibc: str, compiler: Compiler) -> bool:
    """Whether an object built on `machine` beside this glibc can be linked and run here."""
    here = c_library()
    # x86_64-linux-gnu, x86_64-redhat-linux; not -musl, -gnux32 or -android.
    same = re.fullmatch(rf"{re.escape(machine)}-(\w+-)?linux(-gnu)?", compiler.machine)
    return same is not None and here is not None and here >= _numbers(glibc)


def c_library() -> tuple[int, ...] | None:
    """The version of this machine's glibc; None for another C library."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return None
    return _numbers(text.removeprefix("glibc ")) if text.startswith("glibc ") else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _name(kind: TargetKind, survives: bool) -> str:
    return f"{kind.value}-survive" if survives else kind.value


def build_prebuilt(out: Path, targets: Sequence[TargetKind] = tuple(TargetKind)) -> str:
    """Builds the objects of some targets and their index in the folder `out`, with the compiler that collc uses.

    Returns:
        The tag of the platforms that a wheel with them is for, such as manylinux_2_36_x86_64.

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
            data = _joined([job.result() for job in jobs], compiler).read_bytes()
        (out / f"{name}.o").write_bytes(data)
        digests = {"inputs": inputs_digest(units), "sha256": hashlib.sha256(data).hexdigest()}
        objects[name] = {"file": f"{name}.o", **digests}
    index = {"format": FORMAT, "machine": machine, "glibc": glibc, "compiler": compiler.version, "objects": objects}
    (out / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="ascii")
    return f"manylinux_{glibc.replace('.', '_')}_{machine}"


def _glibc_of(compiler: Compiler) -> str:
    """The version of glibc that a compiler builds for: that of its headers, which need not be this machine's."""
    with temporary_folder() as name:
        source, found = Path(name) / "glibc.cpp", Path(name) / "glibc.txt"
        source.write_text("#include <features.h>\n__GLIBC__.__GLIBC_MINOR__\n", encoding="ascii")
        run_tool([compiler.path, "-E", "-P", str(source), "-o", str(found)])
        lines = found.read_text(encoding="utf-8").split("\n")
    version = "".join(lines[-2].split()) if len(lines) > 1 else ""
    if not re.fullmatch(r"\d+\.\d+", version):
        raise BuildError(
            "does not build for Linux with glibc", where=compiler.path, hint="set COLLC_CXX to one that does"
        )
    return version


def _joined(objects: Sequence[Path], compiler: Compiler) -> Path:
    """One object of several and of what they use of the C++ library."""
    standard = Path(ask(compiler.path, "-print-file-name=libstdc++.a"))
    if not standard.is_absolute():
        raise BuildError("has no static C++ library", where=compiler.path, hint="install libstdc++.a")
    digest = hashlib.sha256(standard.read_bytes()).hexdigest()
    command = [compiler.path, *JOIN_FLAGS, *map(str, objects), str(standard)]
    key = content_key([compiler.version, *JOIN_FLAGS, digest, *(path.parent.name for path in objects)])
    return cached(key, "runtime.o", lambda made: run_tool([*command, "-o", str(made)]))
