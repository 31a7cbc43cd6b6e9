"""Lists the translation units of the runtime, with their files and compiler flags. They do not depend on a topology.

Most units include the source files of several folders. So the compiler reads their headers once, and compiles once the
parts of the standard library that several files use. Compiled file by file, the same code takes three times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collc.build.toolchain import Compiler
from collc.errors import BuildError
from collc.options import TargetKind
from collc.resources import resource_dir

HEADER_SUFFIXES = {".h", ".hpp", ".inc", ".cuh"}
# The folders of the runtime that only one target needs. Every target needs all other folders.
TARGET_ROOMS = {TargetKind.HOST: ("host",), TargetKind.CUDA: ("cuda",)}
# The unit that compares the machine of a run with the machine after each loss. Only libraries that survive losses have
# it.
SURVIVING = "plan_match_machine"
# The unit of the loops of reductions, which has separate flags.
KERNELS = "host_reduce_kernels"


FASTEST = "-O3"
# The level of code that runs once per communicator or not at all. This is most of the runtime, and -Og takes two thirds
# of the compile time of -O1.
SELDOM = "-Og"
# The unit of files that each call executes, from folders whose other files mostly create and end communicators.
CALLS = "calls"
# The files of this unit, as folder_file.
HOT = {
    *("api_collectives", "api_run", "communicator_communicator"),
    *("communicator_group", "communicator_registry"),
    *("control_balancer", "control_call_log", "plan_weights"),
    *("host_backend", "host_call_cut", "host_call_paths", "host_fifo_call", "host_rank"),
    *("host_reduce", "host_single_copy_call"),
    *("transport_buffers", "transport_fifo", "transport_single_copy", "transport_transfers"),
}
# The folders that share a unit, and its optimization level. There are few units, because each one reads the headers of
# the standard library again. The units with the longest compile time come first.
UNITS = {
    CALLS: ((), "-O2"),
    "cuda": (("cuda",), FASTEST),
    "setup": (("api", "communicator", "host", "transport"), SELDOM),
    # Proxy threads work for as long as the job, but mostly wait for the network.
    "wire": (("wire",), "-O1"),
    "core": (("base", "bootstrap", "control", "plan"), SELDOM),
}
# The compiler vectorizes the loops over types of 16 and 8 bits, which needs -fno-trapping-math. The source vectorizes
# the other loops. Without contraction to fused operations, the bits of results are equal on all machines.
KERNEL_FLAGS = ("-ftree-vectorize", "-ffp-contract=off", "-fno-trapping-math")


@dataclass(frozen=True)
class Unit:
    """One translation unit of the runtime: its name, source files, optimization level and additional flags."""

    name: str
    files: tuple[Path, ...]
    level: str = FASTEST
    flags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The source text, which includes the files."""
        return "".join(f'#include "{path.parent.name}/{path.name}"\n' for path in self.files)

    @property
    def contents(self) -> list[bytes]:
        """The contents of the files. The object depends only on these, the headers, the flags and the compiler."""
        return [path.read_bytes() for path in self.files]


def runtime_dir() -> Path:
    """Returns the folder of the runtime's sources."""
    return resource_dir("templates") / "runtime"


def include_dirs() -> list[Path]:
    """Returns the include directories of the runtime's sources."""
    return [resource_dir("templates") / "include", runtime_dir()]


def headers() -> list[Path]:
    """Returns all headers that a unit may include, in a fixed order."""
    return sorted(path for folder in include_dirs() for path in folder.rglob("*") if path.suffix in HEADER_SUFFIXES)


def runtime_units(target: TargetKind, compiler: Compiler, *, survives: bool = True) -> list[Unit]:
    """Returns the units of a target's library.

    Args:
        compiler: for x86-64, the kernels of reductions are also built for its level v3.
        survives: include the unit `SURVIVING`.

    Raises:
        BuildError: the sources are missing.
    """
    others = {folder for kind, folders in TARGET_ROOMS.items() if kind is not target for folder in folders}
    sources = sorted(path for path in runtime_dir().glob("*/*.cpp") if path.parent.name not in others)
    folders = {path.parent.name for path in sources}
    folder_unit = {folder: name for name, (members, _) in UNITS.items() for folder in members}
    if not {"api", *TARGET_ROOMS[target]} <= folders <= set(folder_unit):
        raise BuildError("the runtime's sources are missing", where=str(runtime_dir()), hint="reinstall collc")
    separate = [path for path in sources if _name(path) in (SURVIVING, KERNELS)]
    unit_of = {
        path: CALLS if _name(path) in HOT else folder_unit[path.parent.name] for path in sources if path not in separate
    }
    # The loops of reductions exist once per instruction set; the library chooses between them at run time.
    has_v3 = compiler.machine.startswith("x86_64")
    units = []
    for name, (_, level) in UNITS.items():
        files = tuple(path for path, unit in unit_of.items() if unit == name)
        flags = ("-DCOLLC_HAVE_V3",) if has_v3 and name == CALLS else ()
        units += [Unit(name, files, level, flags)] * bool(files)
    for path in separate:
        if _name(path) == KERNELS:
            v3 = (*KERNEL_FLAGS, "-march=x86-64-v3", "-DCOLLC_ISA=v3")
            units += [Unit(f"{KERNELS}_v3", (path,), flags=v3)] * has_v3
            units.append(Unit(KERNELS, (path,), "-O1" if has_v3 else FASTEST, KERNEL_FLAGS))
        elif survives:
            units.append(Unit(SURVIVING, (path,), SELDOM))
    return units


def _name(path: Path) -> str:
    """Returns the name of a source file with its folder: folder_file."""
    return f"{path.parent.name}_{path.stem}"
