"""`collc run`: what the command finds in its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.libraries import library, shared_library

from collc.build.clients import PATH_VARIABLES

FAKE = Path(__file__).parent.parent / "runtime" / "fake_nccl.c"
SHOW = 'echo "$LD_PRELOAD|$COLLC_NCCL"\n'


def run(*argv: str, **settings: str) -> list[str]:
    """The variables that the command prints: LD_PRELOAD and COLLC_NCCL with SHOW."""
    hidden = ("COLLC_NCCL", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", *PATH_VARIABLES)
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


def test_nccl_is_the_one_that_a_client_was_told_or_the_loader_finds(tmp_path: Path) -> None:
    named, found = tmp_path / "named" / "libnccl.so.2", tmp_path / "found" / "libnccl.so.2"
    for path in (named, found):
        path.parent.mkdir()
        path.write_bytes(shared_library(FAKE, "-Wl,-soname,libnccl.so.2").read_bytes())
    assert run("sh", "-c", SHOW, LD_LIBRARY_PATH=str(found.parent))[1] == str(found)
    settings = {"LD_LIBRARY_PATH": str(found.parent), "SGLANG_NCCL_SO_PATH": str(named)}
    assert run("sh", "-c", SHOW, **settings)[1] == str(named)


def test_clients_find_a_link_to_the_library(tmp_path: Path) -> None:
    show = 'echo "$VLLM_NCCL_SO_PATH|$SGLANG_NCCL_SO_PATH|$LD_LIBRARY_PATH|$PYTHONPATH"\n'
    python_path = os.environ.get("PYTHONPATH", "")
    link, same, search, packages = run("sh", "-c", show, LD_LIBRARY_PATH="/opt/lib")
    assert Path(link).resolve() == library("pair").resolve()
    assert (same, search) == (link, f"{Path(link).parent}:/opt/lib")
    assert packages == python_path
    # In an environment with XGBoost, Python finds the link as a part of the package nvidia.nccl, and NCCL's headers.
    nccl = python_environment(tmp_path)
    (nccl.parents[3] / "xgboost").mkdir()
    (nccl.parents[1] / "include").mkdir()
    (tmp_path / "bin" / "train").write_text("#!/bin/sh\n" + show)
    link, same, search, packages = run(str(tmp_path / "bin" / "train"))
    root = Path(link).parents[3]
    assert (same, search) == (link, str(Path(link).parent))
    assert packages == (f"{root}:{python_path}" if python_path else str(root))
    assert (root / "nvidia" / "nccl" / "include").resolve() == (nccl.parents[1] / "include").resolve()


def test_a_command_inside_another_does_not_take_the_library_for_nccl(tmp_path: Path) -> None:
    inner = [sys.executable, "-m", "collc", "run", "--lib", str(library("odd")), "--", "sh", "-c", SHOW]
    assert run(*inner) == [f"{library('odd').resolve()}:{library('pair').resolve()}", ""]


def test_a_wheel_that_hides_other_packages_is_reported(tmp_path: Path) -> None:
    nccl = python_environment(tmp_path)
    (nccl.parents[3] / "xgboost").mkdir()
    (nccl.parents[2] / "__init__.py").touch()
    command = [
        sys.executable,
        "-m",
        "collc",
        "run",
        "--lib",
        str(library("pair")),
        "--",
        str(tmp_path / "bin" / "train"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert f"collc run: XGBoost opens {nccl} by its path, not the library; pass dmlc_nccl_path=" in done.stderr
