"""Builds the libraries that check.py runs from the tables in this folder, the runtime and the kernels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from gpu import CheckError
from sources import source

HERE = Path(__file__).resolve().parent
TEMPLATES = HERE.parent / "templates"
DEVICE_SOURCE = TEMPLATES / "cuda" / "device.cu"
FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread", "-ffp-contract=off")
INCLUDE = (f"-I{TEMPLATES / 'include'}", f"-I{TEMPLATES / 'runtime'}")
LINK = ("-shared", "-pthread", "-ldl", "-Wl,-z,nodelete", "-Wl,-Bsymbolic")
COUNTING, LENDING = "counting", "lending"
# Libraries with other kernels: the macro that selects these, and the symbol that tells the runtime.
VARIANTS = {COUNTING: ("-DCOLLC_COUNTERS", "collc_counters"), LENDING: ("-DCOLLC_DIRECT", "collc_direct")}
# The folder of the runtime that only the host target needs.
HOST_ROOM = "host"
# Files that have a name in an anonymous namespace in common with another file of their folder.
ALONE = {"match_machine.cpp"}
# For builds without nvcc: NVRTC, collc's program that calls it, and headers that NVRTC lacks.
NVRTC = "libnvrtc.so.12"
WORKER = HERE.parent / "collc" / "build" / "nvrtc_worker.py"
STAND_INS = TEMPLATES / "nvrtc"
# The oldest GPUs that nvcc 13 compiles for: at all, and with all arithmetic instructions that the kernels use.
OLDEST, WITH_ITS_ARITHMETIC = 75, 80


def tool(names: tuple[str, ...], purpose: str) -> str:
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        raise CheckError(f"no {purpose} here ({', '.join(names)}); --library takes libraries that are built already")
    return found


def run_one(job: list[str], deadline: float) -> None:
    left = max(0.1, deadline - time.monotonic())
    try:
        done = subprocess.run(
            job, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=left, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CheckError(f"{Path(job[0]).name} did not end in its time") from error
    if done.returncode:
        words = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-400:])
        raise CheckError(f"{Path(job[0]).name} ended with status {done.returncode}: {words}")


def run_all(jobs: list[list[str]], deadline: float) -> None:
    """Runs commands in parallel, one per core; ends them at the deadline."""
    with ThreadPoolExecutor(max(os.cpu_count() or 1, 2)) as pool:
        list(pool.map(lambda job: run_one(job, deadline), jobs))


def release_of(nvcc: str) -> int:
    """Returns an nvcc's major CUDA release, such as 13; 0 if unknown."""
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"release (\d+)\.", said)
    return int(found[1]) if found else 0


def find_nvrtc() -> Path | None:
    """Returns an NVRTC 12: COLLC_NVRTC, or one in a wheel (PyTorch's for CUDA 12) or in a CUDA 12 in /usr/local."""
    if os.environ.get("COLLC_NVRTC"):
        return Path(os.environ["COLLC_NVRTC"])
    folders = [Path(folder) / "nvidia" / "cuda_nvrtc" / "lib" for folder in sys.path if folder]
    folders += sorted(Path("/usr/local").glob("cuda-12*/lib64"), reverse=True)
    return next((folder / NVRTC for folder in folders if (folder / NVRTC).is_file()), None)


def device_job(sm: int, fatbin: Path, cuda: int = 13, *, variant: str | None = None) -> list[str]:
    """Returns the command that compiles the kernels for one GPU architecture, through the PTX of collc's libraries.

    If nvcc is newer than the driver's CUDA, or the GPU is a Pascal or Volta, which nvcc 13 does not support, the
    command runs NVRTC 12.

    Args:
        cuda: the CUDA release of the driver.
        variant: a name in `VARIANTS`.
    """
    defines = [VARIANTS[variant][0]] if variant else []
    nvcc = next((path for path in map(shutil.which, ("nvcc", "/usr/local/cuda/bin/nvcc")) if path), None)
    release = release_of(nvcc) if nvcc else 0
    if nvcc is None or release > cuda or (release >= 13 and sm < OLDEST):
        nvrtc = find_nvrtc()
        if nvrtc is None:
            why = f"nvcc {release} makes none that sm_{sm} and a driver for CUDA {cuda} run" if nvcc else "no nvcc here"
            raise CheckError(f"no compiler for the kernels: {why}, and no NVRTC 12 (pip: nvidia-cuda-nvrtc-cu12)")
        files = [nvrtc, DEVICE_SOURCE, STAND_INS, fatbin, fatbin.with_suffix(".ptx"), fatbin.with_suffix(".log")]
        flags = [f"-arch=sm_{sm}", "-std=c++17", "--ptxas-options=-v", INCLUDE[0], *defines]
        return [sys.executable, str(WORKER), *map(str, files), *flags]
    virtual = WITH_ITS_ARITHMETIC if sm >= WITH_ITS_ARITHMETIC else OLDEST
    code = f"-gencode=arch=compute_{virtual},code=[sm_{sm},compute_{virtual}]"
    flags = ["-std=c++17", "-O3", *INCLUDE, code, "-fatbin", "-allow-unsupported-compiler"]
    return [nvcc, *flags, *defines, str(DEVICE_SOURCE), "-o", str(fatbin)]


def write_sources(names: tuple[str, ...], folder: Path) -> list[Path]:
    """Writes NAME.cpp in `folder` for the tables of each name; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"{name}.cpp" for name in names]
    for path in made:
        path.write_text(source(path.stem), encoding="ascii")
    return made


def write_rooms(folder: Path) -> list[Path]:
    """Writes sources that each include the files of one folder of the runtime, so headers are read once per folder."""
    rooms = sorted(p for p in (TEMPLATES / "runtime").iterdir() if p.is_dir() and p.name != HOST_ROOM)
    units: dict[Path, list[Path]] = {}
    for file in (file for room in rooms for file in sorted(room.glob("*.cpp"))):
        own = f"-{file.stem}" if file.name in ALONE else ""
        units.setdefault(folder / f"runtime-{file.parent.name}{own}.cpp", []).append(file)
    for unit, files in units.items():
        unit.write_text("".join(f'#include "{file}"\n' for file in files), encoding="utf-8")
    return list(units)


def write_assembly(code: Path, sm: int, *, variant: str | None = None) -> str:
    """Writes the source that puts device code into a library, with the symbols that collc adds to it."""
    assembly = code.with_suffix(".s")
    word = VARIANTS[variant][1] if variant else ""
    known = f".globl {word}\n.hidden {word}\n{word}: .byte 1\n" if word else ""
    assembly.write_text(
        ".section .rodata\n.balign 16\n.globl collc_fatbin\n.hidden collc_fatbin\n"
        f'collc_fatbin:\n.incbin "{code}"\n'
        ".globl collc_device_code\n.hidden collc_device_code\n"
        f'collc_device_code:\n.asciz "sm_{sm}, PTX"\n{known}.section .note.GNU-stack,"",%progbits\n',
        encoding="utf-8",
    )
    return str(assembly)


class Built(NamedTuple):
    """The libraries that were built, and the errors of the others, by name."""

    made: list[Path]
    failed: dict[str, str]


def build(
    sources: list[Path],
    folder: Path,
    sm: int,
    deadline: float,
    *,
    optimize: str = "-O2",
    fatbin: Path | None = None,
    cuda: int = 13,
    counting: str | None = None,
    lending: str | None = None,
) -> Built:
    """Compiles generated sources with the runtime and the kernels: libcollc-NAME.so for NAME.cpp, in `folder`.

    A source that does not compile costs only its own library.

    Args:
        fatbin: existing device code to use.
        cuda: the CUDA release of the driver.
        counting: also build a library `COUNTING` with the tables of this name, whose kernels count their time.
        lending: also build a library `LENDING` with the tables of this name, whose ranks read each other's buffers.
    """
    cxx = tool(("g++", "clang++"), "C++ compiler")
    folder.mkdir(parents=True, exist_ok=True)
    code = fatbin or folder / "collc.fatbin"
    jobs = [] if fatbin else [device_job(sm, code, cuda)]
    runtime = write_rooms(folder)
    objects = {source: str(source.with_suffix(".o")) for source in (*sources, *runtime)}
    own = {s: [cxx, *FLAGS, optimize, *INCLUDE, "-c", str(s), "-o", made] for s, made in objects.items()}
    failed: dict[str, str] = {}
    variants = {name: of for name, of in ((COUNTING, counting), (LENDING, lending)) if of}
    codes = {name: folder / f"{name}.fatbin" for name in variants}

    def each_apart(commands: dict[Path, list[str]]) -> None:
        def tried(source: Path) -> None:
            try:
                run_one(commands[source], deadline)
            except CheckError as error:
                failed[source.stem] = str(error)

        with ThreadPoolExecutor(max(os.cpu_count() or 1, 2)) as pool:
            list(pool.map(tried, commands))

    with ThreadPoolExecutor(1) as beside:
        if variants:
            beside.submit(each_apart, {made: device_job(sm, made, cuda, variant=n) for n, made in codes.items()})
        run_all([*jobs, *(own[source] for source in runtime)], deadline)
        each_apart({source: own[source] for source in sources})
    made = {source: folder / f"libcollc-{source.stem}.so" for source in sources if source.stem not in failed}
    common = [objects[source] for source in runtime]
    with_code = [*common, write_assembly(code, sm)]
    links = {source: [cxx, objects[source], *with_code, *LINK, "-o", str(out)] for source, out in made.items()}
    for name, of in variants.items():
        if {name, of} & failed.keys():
            continue
        parts = [str(folder / f"{of}.o"), *common, write_assembly(codes[name], sm, variant=name)]
        made[codes[name]] = folder / f"libcollc-{name}.so"
        links[codes[name]] = [cxx, *parts, *LINK, "-o", str(made[codes[name]])]
    each_apart(links)
    return Built([out for source, out in made.items() if source.stem not in failed], failed)
