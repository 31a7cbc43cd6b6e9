"""`collc run`: what the command finds in its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.libraries import library

SHOW = 'echo "$LD_PRELOAD|$COLLC_NCCL"\n'


def run(*argv: str, **settings: str) -> list[str]:
    """LD_PRELOAD and COLLC_NCCL as the command sees them."""
    hidden = ("COLLC_NCCL", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-m", "collc", "run", "--lib", str(library("pair")), "--", *argv]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**environment, **settings}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split("|")


def python_environment(prefix: Path) -> Path:
    """A Python environment with NCCL's wheel and a program `train`; the path of NCCL."""
    nccl = prefix / "lib" / "python3.11" / "site-packages" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    nccl.parent.mkdir(parents=True)
    nccl.write_bytes(b"")
    program = prefix / "bin" / "train"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n" + SHOW)
    program.chmod(0o755)
    return nccl


def test_the_library_is_preloaded_before_others(tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    other.symlink_to(library("pair"))
    assert run("sh", "-c", SHOW)[0] == str(library("pair").resolve())
    assert run("sh", "-c", SHOW, LD_PRELOAD=str(other))[0] == f"{library('pair').resolve()}:{other}"


def test_nccl_is_the_one_of_the_commands_own_python_environment(tmp_path: Path) -> None:
    mine, active = python_environment(tmp_path / "mine"), python_environment(tmp_path / "active")
    train = str(tmp_path / "mine" / "bin" / "train")
    assert run(train)[1] == str(mine)
    assert run(train, VIRTUAL_ENV=str(tmp_path / "active"))[1] == str(mine)
    assert run("train", PATH=f"{tmp_path / 'mine' / 'bin'}:{os.environ['PATH']}")[1] == str(mine)
    # A command that belongs to no environment with NCCL: the activated one.
    assert run("sh", "-c", SHOW, VIRTUAL_ENV=str(tmp_path / "active"))[1] == str(active)


def test_a_chosen_nccl_stays(tmp_path: Path) -> None:
    python_environment(tmp_path)
    assert run(str(tmp_path / "bin" / "train"), COLLC_NCCL="/opt/libnccl.so.2")[1] == "/opt/libnccl.so.2"


def test_without_a_command_there_is_a_line(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    command = [sys.executable, "-m", "collc", "run", "--lib", str(library("pair")), "--", missing]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"collc: {missing}: cannot run it: No such file or directory (name a program after --)\n"
