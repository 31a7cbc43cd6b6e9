"""The translation units of the runtime, which know no topology: what is compiled, with which flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collc.build.toolchain import Compiler
from collc.errors import BuildError
from collc.options import TargetKind
from collc.resources import resource_dir

HEADER_SUFFIXES = {".h", ".hpp", ".inc", ".cuh"}
# The rooms of the runtime that one target alone needs; all others serve every target.
TARGET_ROOMS = {TargetKind.HOST: ("transport", "wire", "host"), TargetKind.CUDA: ("cuda",)}
# The unit that compares the machine of a run with what losses leave: for libraries that survive losses alone.
SURVIVING = "plan_match_machine"


@dataclass(frozen=True)
class Unit:
    """One object of the runtime: its source, its name, its own flags."""

    source: Path
    name: str
    flags: tuple[str, ...] = ()


def runtime_dir() -> Path:
    """The folder of the runtime's sources."""
    return resource_dir("templates") / "runtime"


def include_dirs() -> list[Path]:
    """The include directories of the runtime's sources."""
    return [resource_dir("templates") / "include", runtime_dir()]


def headers() -> list[Path]:
    """Every header that a unit may include, in a fixed order."""
    return sorted(path for folder in include_dirs() for path in folder.rglob("*") if path.suffix in HEADER_SUFFIXES)


def runtime_units(target: TargetKind, compiler: Compiler) -> list[Unit]:
    """The units of a target's library: those that all targets share and those of its own rooms.

    Raises:
        BuildError: if the sources are missing.
    """
    others = {room for kind, rooms in TARGET_ROOMS.items() if kind is not target for room in rooms}
    sources = sorted(path for path in runtime_dir().glob("*/*.cpp") if path.parent.name not in others)
    if not {path.parent.name for path in sources} >= {"api", *TARGET_ROOMS[target]}:
        raise BuildError("the runtime's sources are missing", where=str(runtime_dir()), hint="reinstall collc")
    # The loops of a reduction exist once per instruction set; the library chooses when it runs.
    wide = compiler.machine.startswith("x86_64")
    units = []
    for path in sources:
        name = f"{path.parent.name}_{path.stem}"
        if path.stem == "reduce_kernels":
            # No contraction to fused operations: the same bits on every CPU.
            units.append(Unit(path, name, ("-ffp-contract=off",)))
            if wide:
                flags = ("-ffp-contract=off", "-march=x86-64-v3", "-DCOLLC_ISA=v3")
                units.append(Unit(path, f"{name}_v3", flags))
        else:
            units.append(Unit(path, name, ("-DCOLLC_HAVE_V3",) if wide and path.stem == "reduce" else ()))
    return units
