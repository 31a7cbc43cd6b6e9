"""The translation units of the runtime, which know no topology: what is compiled, with which flags.

A unit includes the files of one or more rooms: their headers are read once, and what several of them use of the
standard library is compiled once. Built file by file, the same code takes the compilers three times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collc.build.toolchain import Compiler
from collc.errors import BuildError
from collc.options import TargetKind
from collc.resources import resource_dir

HEADER_SUFFIXES = {".h", ".hpp", ".inc", ".cuh"}
# The rooms of the runtime that one target alone needs; all others serve every target.
TARGET_ROOMS = {TargetKind.HOST: ("host",), TargetKind.CUDA: ("cuda",)}
# The unit that compares the machine of a run with what losses leave: for libraries that survive losses alone.
SURVIVING = "plan_match_machine"
# The unit of the loops of reductions, which is compiled with flags of its own.
KERNELS = "host_reduce_kernels"


FASTEST = "-O3"
# What runs once per communicator or not at all. It is most of the runtime, and -Og takes compilers two thirds of the
# time of -O1.
SELDOM = "-Og"
# The unit of the files that calls execute, in rooms most of whose code makes and ends communicators.
CALLS = "calls"
HOT = {
    *("api_collectives", "api_run", "communicator_communicator"),
    *("communicator_group", "communicator_registry"),
    *("control_balancer", "control_call_log", "plan_weights"),
    *("host_backend", "host_call_ways", "host_rank", "host_reduce", "host_single_copy_call"),
    *("transport_buffers", "transport_fifo", "transport_single_copy", "transport_transfers"),
}
# Rooms that share a unit, and its level of optimisation. Every unit reads the headers of the standard library again, so
# there are few; the longest come first.
UNITS = {
    CALLS: ((), "-O2"),
    "cuda": (("cuda",), FASTEST),
    "setup": (("api", "communicator", "host", "transport"), SELDOM),
    # Couriers work as long as a job does, but wait for the network for most of it.
    "wire": (("wire",), "-O1"),
    "core": (("base", "bootstrap", "control", "plan"), SELDOM),
}
# Loops over types of 16 and 8 bits are turned into vectors by the compiler, which may do it only if nobody asks for
# floating-point traps; the others are vectors in the source. No contraction to fused operations: equal bits everywhere.
KERNEL_FLAGS = ("-ftree-vectorize", "-ffp-contract=off", "-fno-trapping-math")


@dataclass(frozen=True)
class Unit:
    """One object of the runtime: its name, the files that it consists of, its level of optimisation, its own flags."""

    name: str
    files: tuple[Path, ...]
    level: str = FASTEST
    flags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Its source."""
        return "".join(f'#include "{path.parent.name}/{path.name}"\n' for path in self.files)

    @property
    def contents(self) -> list[bytes]:
        """What its files contain: beside the headers all that an object of it depends on."""
        return [path.read_bytes() for path in self.files]


def runtime_dir() -> Path:
    """The folder of the runtime's sources."""
    return resource_dir("templates") / "runtime"


def include_dirs() -> list[Path]:
    """The include directories of the runtime's sources."""
    return [resource_dir("templates") / "include", runtime_dir()]


def headers() -> list[Path]:
    """Every header that a unit may include, in a fixed order."""
    return sorted(path for folder in include_dirs() for path in folder.rglob("*") if path.suffix in HEADER_SUFFIXES)


def runtime_units(target: TargetKind, compiler: Compiler, *, survives: bool = True) -> list[Unit]:
    """The units of a target's library: those that all targets share and those of its own rooms.

    Args:
        survives: with what compares the machine of a run with what losses leave.

    Raises:
        BuildError: if the sources are missing.
    """
    others = {room for kind, rooms in TARGET_ROOMS.items() if kind is not target for room in rooms}
    sources = sorted(path for path in runtime_dir().glob("*/*.cpp") if path.parent.name not in others)
    rooms = {path.parent.name for path in sources}
    home = {room: name for name, (members, _) in UNITS.items() for room in members}
    if not {"api", *TARGET_ROOMS[target]} <= rooms <= set(home):
        raise BuildError("the runtime's sources are missing", where=str(runtime_dir()), hint="reinstall collc")
    alone = [path for path in sources if _name(path) in (SURVIVING, KERNELS)]
    unit_of = {path: CALLS if _name(path) in HOT else home[path.parent.name] for path in sources if path not in alone}
    # The loops of a reduction exist once per instruction set; the library chooses when it runs.
    wide = compiler.machine.startswith("x86_64")
    units = []
    for name, (_, level) in UNITS.items():
        files = tuple(path for path, unit in unit_of.items() if unit == name)
        flags = ("-DCOLLC_HAVE_V3",) if wide and name == CALLS else ()
        units += [Unit(name, files, level, flags)] * bool(files)
    for path in alone:
        if _name(path) == KERNELS:
            v3 = (*KERNEL_FLAGS, "-march=x86-64-v3", "-DCOLLC_ISA=v3")
            units += [Unit(f"{KERNELS}_v3", (path,), flags=v3)] * wide
            units.append(Unit(KERNELS, (path,), "-O1" if wide else FASTEST, KERNEL_FLAGS))
        elif survives:
            units.append(Unit(SURVIVING, (path,), SELDOM))
    return units


def _name(path: Path) -> str:
    return f"{path.parent.name}_{path.stem}"
