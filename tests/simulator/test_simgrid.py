"""Flows over shared links against SimGrid, an independent simulator (simgrid.org)."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from collc.simulator import compiled, engine
from collc.simulator.engine import Outcome
from collc.simulator.model import Case, CaseFifo, CaseStep, Loop

HERE = Path(__file__).parent
CASES = json.loads((HERE / "simgrid.json").read_text())["cases"]


def case_of(given: dict[str, Any]) -> Case:
    """Each flow is one chunk of a separate loop. Its reader does nothing. Capacities: bytes per microsecond."""
    flows = given["flows"]
    n = len(flows)
    loops = [Loop(0, i, (CaseStep(i, 0, (), (i,), math.inf),)) for i in range(n)]
    loops += [Loop(1, i, (CaseStep(i, 0, (i,), (), math.inf),)) for i in range(n)]
    fifos = tuple(CaseFifo(i, n + i, tuple(path), 0.0) for i, (_, path) in enumerate(flows))
    chunks = tuple((1, size, size) for size, _ in flows)
    capacity = tuple(speed / 1e6 for speed in given["capacity"])
    return Case(tuple(loops), fifos, chunks, (2,) * n, capacity, 2, 0.0, 0.0, 0.0)


def ends_of(outcome: Outcome, n: int) -> list[float]:
    found = {row.loop: row.end / 1e6 for row in outcome.executions}
    return [found[i] for i in range(n)]


@pytest.mark.parametrize("given", CASES, ids=range(len(CASES)))
def test_both_engines_end_flows_when_simgrid_does(given: dict[str, Any]) -> None:
    # SimGrid works to a precision of 1e-5 of a byte and a nanosecond.
    expected = pytest.approx(given["ends"], rel=1e-6, abs=2e-9)
    assert ends_of(engine.run(case_of(given)), len(given["flows"])) == expected
    if compiled.available():
        assert ends_of(compiled.run(case_of(given)), len(given["flows"])) == expected


def test_simgrid_still_says_so() -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    ask = [python or "", "-c", "import simgrid"]
    if not python or subprocess.run(ask, capture_output=True, check=False).returncode:
        pytest.skip("SimGrid's Python module is not installed (Debian: python3-simgrid)")
    given = json.dumps([{key: case[key] for key in ("capacity", "flows")} for case in CASES])
    run = [python, str(HERE / "simgrid_flows.py")]
    done = subprocess.run(run, input=given, capture_output=True, text=True, check=True)
    for case, line in zip(CASES, done.stdout.splitlines(), strict=True):
        assert json.loads(line) == pytest.approx(case["ends"], rel=1e-9)
