"""nccl-tests' own binaries, unmodified, over a library of the host target. NCCL_TESTS names the folder with them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from preloads import counts, environment
from support.elf import needed
from support.libraries import library

pytestmark = pytest.mark.slow

RANKS = 8
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
# size, count, type, operation, root, then time, two bandwidths and #wrong, twice
ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+ )?\s*(-?\d+)((?:\s+[\d.]+){3})\s+N/A((?:\s+[\d.]+){3})\s+N/A\s*")


def binaries() -> list[Path]:
    folder = os.environ.get("NCCL_TESTS")
    found = sorted(Path(folder).resolve().rglob("*_perf*")) if folder else []
    return [path for path in found if path.is_file() and os.access(path, os.X_OK)]


def launcher(libraries: set[str]) -> list[str] | None:
    """mpirun of the MPI that a program is linked with, for RANKS processes; None where it is not here."""
    if "libmpi.so.40" in libraries:
        found = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
        options = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    else:
        found, options = shutil.which("mpiexec.hydra") or shutil.which("mpirun"), []
    return [found, *options, "-np", str(RANKS)] if found else None


def ways(binary: Path) -> list[str]:
    mpi = any(name.startswith("libmpi") for name in needed(binary))
    return ["processes"] if mpi else ["gpus", "threads"]


CASES = [pytest.param(path, way, id=f"{path.name}-{way}") for path in binaries() for way in ways(path)]


def run(binary: Path, way: str, settings: dict[str, str], *options: str) -> list[str]:
    """Runs a program with RANKS ranks; the rows of its table."""
    libraries = needed(binary)
    if not any(name.startswith("libcudart.so") for name in libraries):
        pytest.fail(f"{binary} has CUDA's runtime inside: build it with CUDARTLIB=cudart and without --cudart=static")
    argv = [str(binary), "-c", "0", *options, *{"gpus": ["-g", "8"], "threads": ["-t", "8"]}.get(way, [])]
    if way == "processes":
        start = launcher(libraries)
        if start is None:
            pytest.skip("the mpirun of these binaries' MPI is not here")
        # mpirun itself runs without the preloads.
        argv = [*start, "env", *(f"{name}={value}" for name, value in settings.items()), *argv]
        settings = {}
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=540, env={**os.environ, **settings}
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.skipif("NCCL_TESTS" not in os.environ, reason="NCCL_TESTS is not set")
def test_the_folder_contains_programs() -> None:
    assert CASES, f"no nccl-tests program (*_perf) below NCCL_TESTS={os.environ['NCCL_TESTS']}"


@pytest.mark.skipif(not CASES, reason="NCCL_TESTS names no folder with nccl-tests' binaries")
@pytest.mark.parametrize(("binary", "way"), CASES)
def test_it_prints_its_table(tmp_path: Path, binary: Path, way: str) -> None:
    settings = environment(tmp_path, library("dgx1v"))
    rows = run(binary, way, settings, "-b1K", "-e1M", "-f4", "-n5", "-w2")
    found = [ROW.fullmatch(row) for row in rows]
    assert len(found) == 6, rows
    for row, match in zip(rows, found, strict=True):
        assert match, row
        times = [float(match[half].split()[0]) for half in (6, 7)]
        assert all(0 < time < 1e6 for time in times), row


@pytest.mark.skipif(not CASES, reason="NCCL_TESTS names no folder with nccl-tests' binaries")
@pytest.mark.parametrize(("binary", "way"), CASES)
def test_every_call_leaves_what_it_must(tmp_path: Path, binary: Path, way: str) -> None:
    settings = environment(tmp_path, library("dgx1v"), "checked_calls.c")
    reducing = binary.name.removesuffix("_mpi").removesuffix("_perf") in REDUCING
    everything = ["-dall", "-oall"] if reducing else ["-dall"]
    run(binary, way, settings, *everything, "-b8", "-e64K", "-f32", "-n2", "-w1")
    total = counts(tmp_path)
    assert total["wrong"] == 0
    if (binary.name, way) == ("hypercube_perf", "gpus"):
        # Its three exchanges become one group, which sends what it also receives: no result is the right one.
        assert total["skipped"] > 0
    else:
        assert total["elements"] > 1_000_000
