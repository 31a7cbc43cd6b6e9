"""Compiles C++ text into object files, or takes them from the build cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collc.build.cache import cached, content_key
from collc.build.runtime import FASTEST, Unit, headers, include_dirs
from collc.build.toolchain import Compiler, run_tool

# Warnings are off: nobody would see them, and they take a tenth of the compile time. Tests compile with warnings.
COMPILE_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread")


def compile_object(unit: Unit, compiler: Compiler, flags: Sequence[str] | None = None) -> Path:
    """Returns the object file of one unit of the runtime, built or from the cache.

    Args:
        flags: replace `COMPILE_FLAGS` and the optimization level of the unit; the unit's additional flags stay.
    """
    base_flags = (*COMPILE_FLAGS, unit.level) if flags is None else flags
    return compile_source(unit.text, unit.name, compiler, (*base_flags, *unit.flags), unit.contents)


def compile_source(
    source: str,
    stem: str,
    compiler: Compiler,
    flags: Sequence[str] = (*COMPILE_FLAGS, FASTEST),
    included: Sequence[bytes] = (),
) -> Path:
    """Returns the object file of a C++ text, built or from the cache.

    Args:
        stem: the name of the object file without its suffix.
        included: the contents of all files that the text includes, except the runtime's headers. The key of the cache
            depends on them.
    """
    dependencies = [*included, *(path.read_bytes() for path in headers())]
    key = content_key([compiler.version, *flags, stem, source, *dependencies])

    def make(output: Path) -> None:
        unit = output.with_name(f"{stem}.cpp")
        unit.write_text(source, encoding="utf-8")
        # Paths of this machine must not reach the library through __FILE__.
        maps = [f"-ffile-prefix-map={folder}=collc" for folder in include_dirs()]
        includes = [f"-I{folder}" for folder in include_dirs()]
        command = [compiler.path, *flags, *maps, f"-ffile-prefix-map={output.parent}=.", *includes]
        run_tool([*command, "-c", unit.name, "-o", output.name], cwd=str(output.parent))

    return cached(key, f"{stem}.o", make)
