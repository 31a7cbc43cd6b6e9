"""The host's cost of a call: the number of driver calls, counted on the mock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from test_cuda_runtime import library, mock_driver

HERE = Path(__file__).parent


def counted(gpus: list[int]) -> dict[str, dict[str, int]]:
    command = [sys.executable, str(HERE / "mock_cost.py"), str(library()), json.dumps(gpus)]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(mock_driver()), "COLLC_SHARE_GPU": "1", "MOCK_GPUS": "3"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def test_a_call_looks_at_its_stream_once_and_records_once() -> None:
    """On a GPU of its own each rank's launch asks: is its context current, is the stream captured, which stream is it.
    Then come the launch and the record of its end. A thread that has another GPU current changes there and back."""
    found = counted([0, 1, 2])
    each = {"is_capturing": 1, "stream_id": 1, "launch": 1, "record": 1}
    for what, launches in (("a call", 1), ("a group of four", 4), ("transfers", 1)):
        counts = found[what]
        contexts = counts.pop("context")
        assert counts == {name: 3 * launches * times for name, times in each.items()}, what
        assert contexts <= 3 * 3 * launches, what


def test_ranks_that_share_a_gpu_share_what_a_launch_asks() -> None:
    """They share all driver calls except the event record, because each rank's later calls wait for its own event."""
    found = counted([0, 0, 0])
    for what, launches in (("a call", 1), ("a group of four", 4), ("transfers", 1)):
        each = {"context": 1, "is_capturing": 1, "stream_id": 1, "launch_cooperative": 1, "record": 3}
        assert found[what] == {name: launches * times for name, times in each.items()}, what
    # Joining the streams takes a record and a wait for each beside the first, there and back.
    assert found["a call on streams of their own"] == {
        "context": 1,
        "is_capturing": 1,
        "stream_id": 1,
        "launch_cooperative": 1,
        "record": 2 + 1 + 3,
        "wait": 2 + 2,
    }
