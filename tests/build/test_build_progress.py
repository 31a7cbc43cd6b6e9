"""A running build reports how many parts it has built, and on a terminal the elapsed time."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collc.build.runtime import UNITS
from collc.cli import app, report
from collc.compiler import CompileRequest, compile_topology
from collc.errors import CollcError
from collc.options import TargetKind

PAIR = """format: collc-topology/1
name: pair
gpus: 2
links: [[gpu0, gpu1, nvlink x1, 25]]
"""


def test_parts_are_counted(tmp_path: Path) -> None:
    (tmp_path / "pair.yaml").write_text(PAIR)
    out = tmp_path / "lib.so"
    told: list[str] = []
    request = CompileRequest(topology=str(tmp_path / "pair.yaml"), output=out, target=TargetKind.HOST)
    compile_topology(request, status=told.append)
    start = told.index(f"building {out}")
    counts = told[start + 1 :]
    assert len(counts) > len(UNITS)
    assert counts == [f"building {out}: {made} of {len(counts)} parts" for made in range(1, len(counts) + 1)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Opens a terminal of 80 columns as standard output and error. Each test calls it: pytest takes the streams."""
    made = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, made)
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return made


def lines(terminal: Terminal) -> list[str]:
    """Returns the lines that the terminal showed, in order, without control sequences and without repetitions."""
    seen = re.split(r"[\r\n]+|\x1b\[2K", re.sub(r"\x1b\[(\?25[lh]|1A)", "", terminal.getvalue()))
    found = [text.rstrip() for text in seen if text.strip()]
    return [text for at, text in enumerate(found) if at == 0 or found[at - 1] != text]


def test_a_terminal_is_told_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    show = report.progress("collc compile")
    for text in ("packing", "building a.so: 3 of 12 parts", "[bold]" + "x" * 200, "a\x1b[2Jb\nc"):
        show(text)
        show("")
    first, second, third, last = [text for text in lines(terminal) if not text.endswith("collc compile 0:00:00")]
    assert re.fullmatch(r"collc compile: packing \d:\d\d:\d\d", first)
    assert re.fullmatch(r"collc compile: building a\.so: 3 of 12 parts \d:\d\d:\d\d", second)
    assert re.fullmatch(r"collc compile: \[bold\]x+… \d:\d\d:\d\d", third)
    assert len(third) == 79
    assert re.fullmatch(r"collc compile: a\\x1b\[2Jb\\nc \d:\d\d:\d\d", last)


def test_a_pipe_gets_a_line_after_each_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.delenv("COLLC_PROGRESS")
    monkeypatch.setattr(report, "MAX_SILENCE_SECONDS", 0.01)
    show = report.progress("collc compile")
    for stage in ("packing", "building a\x1b[2J.so"):
        show(stage)
        before = pipe.getvalue().count("\n")
        while pipe.getvalue().count("\n") < before + 2:
            pass
    report.note("a note")
    ended = pipe.getvalue()
    assert ended.endswith("s\na note\n")
    packing, building = (
        re.compile(rf"collc compile: {stage}, \d+ s") for stage in ("packing", r"building a\\x1b\[2J\.so")
    )
    rows = ended.splitlines()[:-1]
    first = sum(packing.fullmatch(row) is not None for row in rows)
    assert first >= 2
    assert all(building.fullmatch(row) for row in rows[first:])
    assert len(rows) >= first + 2
    show("")
    monkeypatch.setenv("COLLC_PROGRESS", "0")
    quiet = report.progress("collc compile")
    quiet("packing")
    assert pipe.getvalue() == ended


def ended(error: BaseException) -> Callable[[list[str]], int]:
    """A command that fails while its status is shown."""

    def run(words: list[str]) -> int:
        report.progress("collc")("working")
        raise error

    return run


def warned(words: list[str]) -> int:
    report.progress("collc")("working")
    logging.getLogger("collc").warning("odd")
    return 0


def printed(words: list[str]) -> int:
    report.progress("collc")("working")
    report.line("a result")
    return 0


@pytest.mark.parametrize(
    ("command", "last"),
    [
        (ended(KeyboardInterrupt()), "collc: interrupted"),
        (ended(CollcError("no", hint="yes")), "collc: no (yes)"),
        (ended(OSError(2, "gone")), "collc: gone (check the name)"),
        (warned, "collc: odd"),
        (printed, "a result"),
    ],
)
def test_what_is_said_has_a_line_of_its_own(
    command: Callable[[list[str]], int], last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = a_terminal(monkeypatch)
    monkeypatch.setattr(app, "_run", command)
    with pytest.raises(SystemExit):
        app.main(["doctor"])
    assert terminal.getvalue().endswith(f"\x1b[2K{last}\n")
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 1, "the cursor is back"


def test_a_failure_of_ours_leaves_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    monkeypatch.setattr(app, "_run", ended(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        app.main(["doctor"])
    assert terminal.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")


def test_a_terminal_that_cannot_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    show = report.progress("collc compile")
    show("packing")
    show("")
    assert not terminal.getvalue()


def test_a_pipe_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    report.progress("collc compile")("packing")
    assert not pipe.getvalue()
