"""Starting ranks: as users do, and by forks, which takes a fourth of the time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = 300
QUIET = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def torchrun_command(ranks: int) -> list[str]:
    run = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
    return [*run, "--standalone", f"--nproc-per-node={ranks}"]


def forks_command(ranks: int) -> list[str]:
    return [sys.executable, "-W", "ignore", str(HERE / "forks.py"), str(ranks)]


def torchrun(ranks: int, script: str, *arguments: object) -> str:
    """Runs a script under torchrun, which must succeed, and returns its output."""
    return succeed([*torchrun_command(ranks), str(HERE / script), *map(str, arguments)])


def forked(ranks: int, script: str, *arguments: object, hosts: str = "") -> str:
    """Runs a script on forked ranks, which must succeed, and returns its output; `hosts`: a letter per machine."""
    return succeed([*forks_command(ranks), str(HERE / script), *map(str, arguments)], RANK_HOSTS=hosts)


def environment(**more: str) -> dict[str, str]:
    """The environment of a script of this folder."""
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **QUIET, "PYTHONPATH": path, **more}


def succeed(command: list[str], **more: str) -> str:
    """Runs a command, which must succeed, and returns its output; `more` is added to its environment."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment(**more)
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def mpirun_command(ranks: int) -> list[str]:
    """Open MPI's launcher; skips the test where there is none."""
    found = shutil.which("mpirun")
    if found is None:
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in version:
        pytest.skip("mpirun is not that of Open MPI, whose variables give rank and size")
    return [found, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), sys.executable, "-W", "ignore"]
