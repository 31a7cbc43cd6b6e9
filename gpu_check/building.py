"""Builds the libraries that check.py runs: the tables beside it, the runtime, the kernels."""

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
# Libraries with other kernels: what defines them, and the word by which the runtime knows.
VARIANTS = {COUNTING: ("-DCOLLC_COUNTERS", "collc_counters"), LENDING: ("-DCOLLC_DIRECT", "collc_direct")}
# The folder of the runtime that only the host target needs.
HOST_ROOM = "host"
# Files whose names in anonymous namespaces another file of their folder has too.
ALONE = {"match_machine.cpp"}
# What compiles without nvcc: collc's own, a program of the standard library, and headers that NVRTC lacks.
NVRTC = "libnvrtc.so.12"
WORKER = HERE.parent / "collc" / "build" / "nvrtc_worker.py"
STAND_INS = TEMPLATES / "nvrtc"
# The chips that nvcc 13 makes code for.
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
    """Runs commands side by side, as many as there are cores; ends them when the time is over."""
    with ThreadPoolExecutor(max(os.cpu_count() or 1, 2)) as pool:
        list(pool.map(lambda job: run_one(job, deadline), jobs))


def release_of(nvcc: str) -> int:
    """An nvcc's release of CUDA, 13 say; 0 where it does not tell."""
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"release (\d+)\.", said)
    return int(found[1]) if found else 0


def find_nvrtc() -> Path | None:
    """An NVRTC 12: COLLC_NVRTC, that of a wheel (PyTorch's for CUDA 12), or of a CUDA 12 in /usr/local."""
    if os.environ.get("COLLC_NVRTC"):
        return Path(os.environ["COLLC_NVRTC"])
    folders = [Path(folder) / "nvidia" / "cuda_nvrtc" / "lib" for folder in sys.path if folder]
    folders += sorted(Path("/usr/local").glob("cuda-12*/lib64"), reverse=True)
    return next((folder / NVRTC for folder in folders if (folder / NVRTC).is_file()), None)


def device_job(sm: int, fatbin: Path, cuda: int = 13, *, variant: str | None = None) -> list[str]:
    """The command that compiles the kernels for one kind of chip, through the PTX that collc's libraries hold.

    A driver runs no code of a newer CUDA than its own, and nvcc 13 knows no Pascal and no Volta: NVRTC 12 does then.

    Args:
        cuda: the release that the driver is for.
        variant: with these kernels of `VARIANTS`.
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
    """NAME.cpp in `folder` for the tables of each name."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"{name}.cpp" for name in names]
    for path in made:
        path.write_text(source(path.stem), encoding="ascii")
    return made


def write_rooms(folder: Path) -> list[Path]:
    """Sources that include the files of a folder of the runtime each: headers are read once per folder."""
    rooms = sorted(p for p in (TEMPLATES / "runtime").iterdir() if p.is_dir() and p.name != HOST_ROOM)
    units: dict[Path, list[Path]] = {}
    for file in (file for room in rooms for file in sorted(room.glob("*.cpp"))):
        own = f"-{file.stem}" if file.name in ALONE else ""
        units.setdefault(folder / f"runtime-{file.parent.name}{own}.cpp", []).append(file)
    for unit, files in units.items():
        unit.write_text("".join(f'#include "{file}"\n' for file in files), encoding="utf-8")
    return list(units)


def write_assembly(code: Path, sm: int, *, variant: str | None = None) -> str:
    """The source that puts device code into a library, with the words that collc puts beside it."""
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
    """The libraries that were built, and what went wrong with the others, by name."""

    made: list[Path]
    failed: dict[str, str]


def build(
    sources: list[Path],
    folder: Path,
    sm: int,
    deadline: float,
    *,
    optimise: str = "-O2",
    fatbin: Path | None = None,
    cuda: int = 13,
    counting: str | None = None,
    lending: str | None = None,
) -> Built:
    """Compiles generated sources with the runtime and the kernels: libcollc-NAME.so for NAME.cpp, in `folder`.

    A source that does not compile costs its own library alone.

    Args:
        fatbin: device code that is there already.
        cuda: the release of CUDA that the driver is for.
        counting: of this name too a library `COUNTING`, whose kernels count where their time goes.
        lending: likewise `LENDING`, whose ranks read each other's buffers.
    """
    cxx = tool(("g++", "clang++"), "C++ compiler")
    folder.mkdir(parents=True, exist_ok=True)
    code = fatbin or folder / "collc.fatbin"
    jobs = [] if fatbin else [device_job(sm, code, cuda)]
    runtime = write_rooms(folder)
    objects = {source: str(source.with_suffix(".o")) for source in (*sources, *runtime)}
    own = {s: [cxx, *FLAGS, optimise, *INCLUDE, "-c", str(s), "-o", made] for s, made in objects.items()}
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
