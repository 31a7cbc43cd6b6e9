"""What a build tells while it runs: how many of its parts are there; on a terminal also for how long it has run."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from collc.build.runtime import UNITS
from collc.cli import report
from collc.compiler import CompileRequest, compile_topology
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


def test_a_terminal_is_told_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = Terminal(), [100.0]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("collc.cli.report.time.monotonic", lambda: now[0])
    show = report.progress("collc compile")
    show("packing")
    now[0] = 112.0
    show("building a.so: 3 of 12 parts")
    show("x" * 200)
    show("")
    lines = terminal.getvalue().split("\r\x1b[K")[1:]
    assert lines[0] == "collc compile: packing (0 s)"
    assert lines[1] == "collc compile: building a.so: 3 of 12 parts (12 s)"
    assert len(lines[2]) == 119
    assert lines[2].endswith("x (12 s)")
    assert lines[3] == ""


def test_a_pipe_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    report.progress("collc compile")("packing")
    assert not pipe.getvalue()
