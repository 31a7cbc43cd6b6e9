"""Ctrl-C while a command reads its modules: one line, whichever module it is, also one written in C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from collc.bench.team import signals_later
from collc.cli import app
from collc.process import python_module

# Sends SIGINT when the module number sys.argv[1] after the first of collc's is looked for; prints how many there were.
SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
at, sys.argv = int(sys.argv[1]), ["collc", *sys.argv[2:]]
class Watch:
    seen = 0
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if cls.seen or name == "collc.cli.app":
            cls.seen += 1
            if cls.seen == at:
                os.kill(os.getpid(), signal.SIGINT)
from collc.cli import main
sys.meta_path.insert(0, Watch)
try:
    main()
finally:
    print("modules", Watch.seen)
"""
COMMANDS = [*app.COMMANDS]


def started(command: str, at: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(at), command, "--help"], capture_output=True, text=True, check=False
    )


def check(command: str, at: int) -> None:
    done = started(command, at)
    assert (done.returncode, done.stderr) == (130, "collc: interrupted\n"), (command, at, done.stderr)


@pytest.mark.parametrize(("number", "command"), list(enumerate(COMMANDS)))
def test_one_line_early_and_late(number: int, command: str) -> None:
    check(command, 1 + 7 * number)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_one_line_at_every_module(command: str) -> None:
    modules = int(started(command, 0).stdout.rpartition("modules ")[2])
    assert modules > 50
    for at in range(1, modules + 1):
        check(command, at)


def test_the_help_of_collc_reads_few_modules() -> None:
    """It takes 0.1 s of CPU time, most of it click: a count, since a time would depend on the machine."""
    script = (
        "import sys\nsys.argv = ['collc', '--help']\nfrom collc.cli import main\ntry:\n    main()\nexcept SystemExit:\n"
    )
    script += "    print(*{name for name in sys.modules if name.split('.')[0] not in sys.stdlib_module_names})"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    names = {name for name in done.stdout.splitlines()[-1].split() if not name.startswith(("_", "click."))}
    own = {name for name in names if name.split(".")[0] == "collc"}
    rooms = {"cli", "collectives", "errors", "inputs", "outputs", "process"}
    assert {name.split(".")[1] for name in own - {"collc"}} <= rooms
    assert {name for name in own if name.startswith("collc.cli.")} == {
        "collc.cli.app",
        "collc.cli.early",
        "collc.cli.report",
    }
    assert {name.split(".")[0] for name in names - own} <= {"click", "distutils-precedence", "sitecustomize"}


SOLVERS = {"highspy", "flint", "scipy", "networkx", "jinja2"}


@pytest.mark.parametrize("module", ["worker", "gpus", "runner", "team", "table", "find", "data", "nccl", "launchers"])
def test_a_rank_that_imports_the_benchmark_reads_no_solver(module: str) -> None:
    script = f"import sys, collc.bench.{module}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    read = set(done.stdout.split())
    assert f"collc.bench.{module}" in read
    assert not SOLVERS & read
    assert not {name for name in read if name.startswith(("collc.packing.", "collc.lowering", "collc.codegen"))} - {
        "collc.packing.model"
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["at once", "while its module is read", "later"])
def test_a_rank_that_is_interrupted_says_nothing(moment: str, number: signal.Signals, tmp_path: Path) -> None:
    """The command that started it has the one line."""
    own = f"import os\ndef end(): os.kill(os.getpid(), {int(number)})\ndef main(): end()\n"
    (tmp_path / "own.py").write_text(own + "end()\n" * (moment == "while its module is read"))
    command = python_module("own" if moment != "at once" else "collc.bench.worker", "no-library.so")
    with signals_later():
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        if moment == "at once":
            process.send_signal(number)
    assert (*process.communicate(), process.returncode) == ("", "", -number)
