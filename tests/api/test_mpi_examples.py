"""The examples for users of MPI: a C program linked with the library in NCCL's place, and one of Python by ctypes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.libraries import library

EXAMPLES = Path(__file__).parents[2] / "examples" / "mpi"
HEADERS = Path(__file__).parents[2] / "templates" / "include"
# MPI launchers in the order of preference, with the options that allow more ranks than cores, and root.
LAUNCHERS = {
    "mpirun.openmpi": ["--oversubscribe", "--bind-to", "none", *["--allow-run-as-root"] * (os.geteuid() == 0)],
    "mpiexec.hydra": [],
    "mpirun.mpich": [],
}
LAUNCHER = next((name for name in LAUNCHERS if shutil.which(name)), None)

pytestmark = [
    pytest.mark.skipif(LAUNCHER is None, reason=f"none of {', '.join(LAUNCHERS)} is installed"),
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not beside these tests"),
]


def run(*command: str | Path, ranks: int) -> subprocess.CompletedProcess[str]:
    assert LAUNCHER is not None
    started = [LAUNCHER, *LAUNCHERS[LAUNCHER], "-np", str(ranks), *map(str, command)]
    return subprocess.run(started, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where `make` has built the C program for the library of three ranks."""
    if shutil.which("mpicc") is None:
        pytest.skip("no mpicc here")
    folder = tmp_path_factory.mktemp("mpi")
    for path in EXAMPLES.iterdir():
        shutil.copy(path, folder)
    (folder / "libcollc-odd.so").symlink_to(library("odd"))
    command = ["make", "TOPOLOGY=odd", f"NCCL_INCLUDE={HEADERS}", "CFLAGS=-std=c99 -Wall -Wextra -Werror"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("size", ["4", "4096", "1000004"])
def test_the_c_program(size: str, built: Path) -> None:
    done = run(built / "gradients", size, ranks=3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"3 ranks, {size} bytes: ncclAllReduce ")
    assert done.stdout.endswith(", 0 wrong\n")


def test_a_library_of_another_size_is_named(built: Path) -> None:
    done = run(built / "gradients", ranks=2)
    assert done.returncode != 0
    assert "compiled for 3 ranks, the communicator has 2" in done.stderr


def test_the_python_program() -> None:
    pytest.importorskip("mpi4py")
    done = run(sys.executable, EXAMPLES / "gradients.py", library("odd"), ranks=3)
    assert (done.returncode, done.stdout) == (0, "3 ranks: averages are right\n"), done.stderr
