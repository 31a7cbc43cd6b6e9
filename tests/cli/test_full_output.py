"""Standard output on a full disk: every command prints one line about it and ends with status 1."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.cli import collc
from support.libraries import topology_file

from collc.cli import main
from collc.cli.app import COMMANDS

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
LINE = "collc: standard output: No space left on device (make room, or choose another disk)"
PROGRAM = Path(__file__).parents[1] / "golden" / "build" / "all_reduce.ir"
# Something that each command prints as its result; LIB is a library with programs to choose from.
# What `run` prints is its command's, but for its help.
PRINTING: dict[str, Sequence[str]] = {
    "probe": ["--cpu"],
    "compile": ["dgx1v", "--gpus", "0,1", "--target", "host"],
    "bench": ["LIB", "--collective", "broadcast", "-b", "4", "-e", "4", "-n", "1", "-w", "0"],
    "tune": ["LIB", "--collective", "broadcast", "-b", "1K", "-e", "1K", "-o", "l.tuning"],
    "simulate": ["dgx1v", "--gpus", "0,1"],
    "plan": ["dgx1v", "--gpus", "0,1"],
    "verify": ["LIB"],
    "export": ["dgx1v", "--format", "dot"],
    "opt": [str(PROGRAM)],
    "show": ["dgx1v", "--text"],
    "inspect": ["LIB"],
    "run": ["--help"],
    "status": [],
    "doctor": [],
    "topologies": [],
}


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lib") / "libcollc-pair.so"
    asked = ["compile", topology_file("pair"), "-o", made, "--target", "host", "--collective", "broadcast"]
    result = collc(*asked, "--tune-candidates")
    assert result.code == 0, result.err
    return made


def on_full_disk(*argv: str) -> tuple[object, str]:
    """The status and the standard error of `collc ARGV...` in this process, whose output is a full disk."""
    err = io.StringIO()
    code: object = 0
    # Closed as Python closes it at its end, which must find nothing left to write.
    with (
        open("/dev/full", "w", encoding="utf-8") as out,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(list(argv))
        except SystemExit as stop:
            code = stop.code
    return code, err.getvalue()


def test_every_command_is_here() -> None:
    assert set(PRINTING) == set(COMMANDS)


@pytest.mark.parametrize("command", PRINTING)
def test_a_result_that_cannot_be_printed(
    command: str, lib: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, err = on_full_disk(command, *(str(lib) if part == "LIB" else part for part in PRINTING[command]))
    # Notes, such as the source of a speed, may precede the error.
    assert [line for line in err.splitlines() if not line.startswith(f"collc {command}: ")] == [LINE], err
    assert code == 1


@pytest.mark.parametrize("argv", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_a_help_that_cannot_be_printed(argv: list[str]) -> None:
    assert on_full_disk(*argv) == (1, f"{LINE}\n")


def test_a_failure_has_its_own_line_alone() -> None:
    """Its JSON document, which standard output does not take, adds nothing."""
    code, err = on_full_disk("plan", "nothing", "--json")
    assert code == 1
    assert len(err.splitlines()) == 1
    assert err.startswith("collc: nothing: no file and no known machine")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_a_process_ends_without_a_second_line(unbuffered: str, more: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "collc", "topologies", *more],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, f"{LINE}\n")
