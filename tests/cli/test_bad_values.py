"""Every command with every option and bad values: an answer or one line, no traceback, and it ends."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.cli import Result, collc
from support.libraries import library

from collc.cli.app import COMMANDS, cli

VALUES = (
    *("", " ", "-", "--", "-1", "0", "99999999999999999999", "9" * 5000, "1e999999", "nan", "0x10", "1.5", "½", "٣"),
    *("\x1b[31m", "\u202e", "\udc80", "a" * 10000, "../..", "/", "/dev/full", "/dev/null/x", "/proc/nowhere/x", "."),
    *("0-999999999", "3-1", "1..99999999", "3..2", "0,0", "0/1/2", ",", ":", "server0:", "all", "-o", "gpu0", "%s"),
)
IR = Path(__file__).parents[1] / "golden" / "lower" / "fuse_copies-broadcast.ir"
# The arguments that a command needs before it checks its options.
FIRST = {
    "plan": ["dgx1v", "--gpus", "0,1,2"],
    "compile": ["BAD", "--target", "host"],
    "simulate": ["dgx1v", "--gpus", "0,1", "-b", "8", "-e", "8", "--collective", "broadcast"],
    "show": ["dgx1v", "--gpus", "0,1,2", "--text"],
    "verify": ["LIB"],
    "export": ["dgx1v", "--format", "dot", "--gpus", "0,1,2"],
    "opt": ["IR"],
    "inspect": ["LIB"],
    "bench": ["BAD"],
    "tune": ["BAD"],
    "run": ["--lib", "BAD", "--", "true"],
    "probe": ["--cpu"],
    "status": ["BAD"],
    "doctor": ["BAD"],
    "topologies": ["extra"],
}


def options(name: str) -> list[str]:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return [
        option
        for param in found.params
        if isinstance(param, click.Option)
        for option in param.opts
        if option != "--debug"
    ]


def problem_of(result: Result) -> str:
    if result.code not in (0, 1, 2) or "Traceback" in result.err:
        return f"{result.code}: {result.err[-300:]}"
    if result.code and not any(line.startswith("collc: ") for line in result.err.splitlines()):
        return f"no line: {result.err[-300:]}"
    return ""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder as the current one, and a limit of address space that a runaway allocation meets.

    Each test has an empty folder, because a file that another command wrote there could be a topology to compile.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "BAD").write_bytes(b"\x7fELF" + bytes(100))
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield tmp_path
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.slow_for("simulate")
def test_every_option_with_every_bad_value(here: Path, name: str) -> None:
    known = {"LIB": str(library("pair")) if name in ("verify", "inspect") else "", "IR": str(IR)}
    words = [known.get(word, word) for word in FIRST[name]]
    slow, wrong = {}, {}
    # Before what the command needs, for `run` hands on what comes after it.
    lines = {(option, value): [name, option, value, *words] for option in options(name) for value in VALUES}
    lines |= {("", value): [name, value] for value in VALUES}
    for (option, value), line in lines.items():
        start = time.process_time()
        result = collc(*line)
        slow[option, value[:20]] = time.process_time() - start
        if problem := problem_of(result):
            wrong[option, value[:20]] = problem
    assert not wrong
    worst = max(slow, key=slow.__getitem__)
    assert slow[worst] < 20, (worst, slow[worst])
