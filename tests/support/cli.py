"""Runs the command line in this process."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass

from collc.cli import main


@dataclass(frozen=True)
class Result:
    """The result of a command: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def collc(*argv: object) -> Result:
    """`collc ARGV...` in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(a) for a in argv])
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())


def refused(result: Result, *, code: int = 1) -> str:
    """The one line of a refusal."""
    assert result.code == code, result
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result.err
    assert "Traceback" not in result.err
    assert lines[0].startswith("collc: ")
    return lines[0]
