"""Commands given in a folder where somebody left files with the names of modules and tools: none of them runs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.libraries import library
from support.tunable import tunable

import collc
from collc.cli.app import COMMANDS
from collc.process import find_program, python_module, safe_environment

MODULES = (
    *("ctypes", "json", "numpy", "re", "os", "subprocess", "tempfile", "zlib", "yaml", "jinja2", "click", "networkx"),
    *("highspy", "igraph", "flint", "elftools", "pynvml", "matplotlib", "sitecustomize", "usercustomize", "start"),
)
PACKAGES = ("collc", "collc/bench", "collc/cli")
TOOLS = ("g++", "gcc", "cc", "clang++", "as", "ld", "ld.bfd", "collect2", "nvcc", "fatbinary", "ptxas", "python3", "sh")
LIBRARIES = ("libcuda.so.1", "libnccl.so.2", "libnvidia-ml.so.1", "libnvrtc.so.12", "libc.so.6", "simulate.so")

PAIR = """format: collc-topology/1
name: strange
gpus: 2
links: [{between: [gpu0, gpu1], kind: nvlink, gbps: 17}]
"""
# The words of each command; LIB and TUNABLE are libraries, IR a program.
COMMAND_LINES: dict[str, list[list[str]]] = {
    "probe": [["--cpu"], ["--cpu", "--measure"]],
    "compile": [["box.yaml", "--target", "host", "--collective", "broadcast", "-o", "libcollc-own.so"]],
    "bench": [["LIB", "-e", "8", "-n", "1", "-w", "0", "--collective", "all_reduce"]],
    "tune": [["TUNABLE", "-b", "1K", "-e", "1K", "-o", "x.tuning", "--collective", "all_reduce"]],
    "simulate": [["box.yaml", "-e", "1K"], ["box.yaml", "-e", "1K", "--compare", "nccl", "--plot", "x.svg"]],
    "plan": [["box.yaml"]],
    "export": [["box.yaml", "--format", "nccl-graph"], ["box.yaml", "--format", "graphml"]],
    "show": [["box.yaml"], ["box.yaml", "--text"]],
    "verify": [["LIB"]],
    "opt": [["IR", "--passes", "fuse_copies", "--verify", "--interpret"]],
    "inspect": [["LIB"]],
    "run": [["--lib", "LIB", "--", "true"]],
    "status": [[]],
    "doctor": [[]],
    "topologies": [[]],
}
ROOT = Path(collc.__file__).parent
IR = Path(__file__).parents[1] / "golden" / "lower" / "fuse_copies-broadcast.ir"


@pytest.fixture
def trapped(tmp_path: Path) -> tuple[Path, Path]:
    """A folder full of traps, and the file that each of them would make."""
    folder, sprung = tmp_path / "strange", tmp_path / "sprung"
    folder.mkdir()
    for name in PACKAGES:
        (folder / name).mkdir()
    trap = f"open({str(sprung)!r}, 'a').write(__file__ + chr(10))\n"
    for path in [f"{m}.py" for m in MODULES] + [f"{p}/__init__.py" for p in PACKAGES] + ["collc/bench/worker.py"]:
        (folder / path).write_text(trap)
    for name in TOOLS:
        (folder / name).write_text(f'#!/bin/sh\necho "$0" >> {sprung}\nexit 1\n')
        (folder / name).chmod(0o755)
    for name in LIBRARIES:
        (folder / name).symlink_to(library("pair"))
    os.mkfifo(folder / "matplotlibrc")
    (folder / "box.yaml").write_text(PAIR)
    return folder, sprung


def start_of(module: bool) -> list[str]:
    script = Path(sys.executable).with_name("collc")
    return [sys.executable, "-m", "collc"] if module or not script.exists() else [str(script)]


@pytest.mark.parametrize(
    ("name", "module"), [*((name, False) for name in COMMANDS), ("doctor", True), ("bench", True)], ids=str
)
def test_nothing_that_lies_about_runs(trapped: tuple[Path, Path], name: str, module: bool) -> None:
    folder, sprung = trapped
    if module:
        # With -m, Python itself prefers a package in the current folder.
        for path in sorted((folder / "collc").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        (folder / "collc").rmdir()
        # runpy imports these before a line of ours.
        for early in ("sitecustomize.py", "usercustomize.py"):
            (folder / early).unlink()
    environment = {**os.environ, "PATH": f":{os.environ['PATH']}:", "LD_LIBRARY_PATH": ""}
    environment.pop("PYTHONPATH", None)
    for words in COMMAND_LINES[name]:
        known = {"LIB": str(library("pair")), "IR": str(IR), "TUNABLE": str(tunable()) if name == "tune" else ""}
        command = [*start_of(module), name, *(known.get(word, word) for word in words)]
        if name == "run":
            environment["PATH"] = os.environ["PATH"]  # whose command is found as the shell finds it
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in (0, 1), done.stderr  # a machine may lack what a command needs
        assert not sprung.exists(), f"{words}: {sprung.read_text()}{done.stderr}"


def test_a_worker_is_of_this_collc_and_sees_what_pythonpath_names(trapped: tuple[Path, Path]) -> None:
    folder, sprung = trapped
    own = folder.parent / "own"
    own.mkdir()
    (own / "chosen.py").write_text("import collc.errors\n\ndef main():\n    print(collc.__file__)\n")
    environment = safe_environment({**os.environ, "PYTHONPATH": f":{own}:"})
    assert environment["PYTHONPATH"] == str(own)
    done = subprocess.run(
        python_module("chosen"), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{ROOT / '__init__.py'}\n", done.stderr
    assert not sprung.exists()


def test_search_paths_without_the_current_folder(trapped: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = trapped
    monkeypatch.chdir(folder)
    for path in ("", ".", f":{folder.name}:.", f"{os.pathsep}"):
        monkeypatch.setenv("PATH", path)
        assert find_program("g++") is None
    assert find_program("./g++") == str(folder / "g++")  # as the user wrote it
    monkeypatch.setenv("PATH", str(folder))
    assert find_program("g++") == str(folder / "g++")


# The modules that may start other programs, and which. Each of them, and each one added, takes its command from
# collc.process, gives an absolute path, or runs what the user named.
STARTERS = {
    "collc.bench.team": "python_module",
    "collc.build.preload": "the loader that the user's command names",
    "collc.cli.run": "the user's command",
}
# The modules that start programs through run_captured, and which.
CAPTURERS = {
    "collc.build.nvcc": "find_program",
    "collc.build.toolchain": "find_program",
    "collc.doctor": "python_script, find_program",
    "collc.network.scripts": "python_script",
    "collc.topology.probe.measure": "a program of the build cache",
    "collc.tune.machine": "python_module",
}
STARTING = {
    *("Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "system", "popen"),
    *("execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp", "execlpe", "posix_spawn", "posix_spawnp"),
    *("spawnv", "spawnl", "spawnvp", "spawnlp", "fork", "forkpty", "create_subprocess_exec", "create_subprocess_shell"),
}
FROM = {"subprocess", "os", "asyncio", "pty"}


def places(path: Path) -> set[str]:
    """The calls in a module that start programs, and its other ways to another Python."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in FROM and node.attr in STARTING:
                found.add(f"{node.value.id}.{node.attr}")
            if (node.value.id, node.attr) == ("sys", "executable"):
                found.add("sys.executable")
            if (node.value.id, node.attr) == ("shutil", "which"):
                found.add("shutil.which")
        if isinstance(node, ast.ImportFrom) and node.module in FROM:
            found |= {f"{node.module}.{alias.name}" for alias in node.names if alias.name in STARTING}
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found |= {name for name in names if name.split(".")[0] in ("multiprocessing", "pty")}
            found |= {name for name in names if name == "concurrent.futures.process"}
        if isinstance(node, ast.Constant) and node.value == "-m":
            found.add("-m")
    return found


def test_every_place_that_starts_a_program_is_known() -> None:
    starters, capturers = {}, set()
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(["collc", *path.relative_to(ROOT).with_suffix("").parts])
        if name == "collc.process":
            continue
        found = places(path)
        # Only collc.process starts Python and searches for tools.
        assert not found & {"sys.executable", "-m"}, f"{name}: use collc.process.python_module"
        if name not in ("collc.bench.find", "collc.cli.run"):  # they find the user's command as the system will
            assert "shutil.which" not in found, f"{name}: use collc.process.find_program"
        if found - {"shutil.which"}:
            starters[name] = found
        if "run_captured" in path.read_text():
            capturers.add(name)
    assert set(starters) == set(STARTERS), starters
    assert capturers == set(CAPTURERS)
