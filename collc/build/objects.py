"""C++ text -> object files, from the cache if they were built before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collc.build.cache import cached, content_key
from collc.build.runtime import FASTEST, Unit, headers, include_dirs
from collc.build.toolchain import Compiler, run_tool

# Without warnings, which nobody would see and which take the compiler a tenth of its time: tests compile with them.
COMPILE_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread")


def compile_object(unit: Unit, compiler: Compiler, flags: Sequence[str] | None = None) -> Path:
    """The object file of one unit of the runtime, from the cache if it was built before.

    Args:
        flags: in place of those of libraries and of the unit's level of optimisation.
    """
    chosen = (*COMPILE_FLAGS, unit.level) if flags is None else flags
    return compile_source(unit.text, unit.name, compiler, (*chosen, *unit.flags), unit.contents)


def compile_source(
    source: str,
    stem: str,
    compiler: Compiler,
    flags: Sequence[str] = (*COMPILE_FLAGS, FASTEST),
    included: Sequence[bytes] = (),
) -> Path:
    """The object file of a C++ text, from the cache if it was built before.

    Args:
        included: the contents of what the text includes beside the runtime's headers.
    """
    fixed = [*included, *(path.read_bytes() for path in headers())]
    key = content_key([compiler.version, *flags, stem, source, *fixed])

    def make(made: Path) -> None:
        unit = made.with_name(f"{stem}.cpp")
        unit.write_text(source, encoding="utf-8")
        # Paths of this machine must not reach the library through __FILE__.
        maps = [f"-ffile-prefix-map={folder}=collc" for folder in include_dirs()]
        includes = [f"-I{folder}" for folder in include_dirs()]
        command = [compiler.path, *flags, *maps, f"-ffile-prefix-map={made.parent}=.", *includes]
        run_tool([*command, "-c", unit.name, "-o", made.name], cwd=str(made.parent))

    return cached(key, f"{stem}.o", make)
