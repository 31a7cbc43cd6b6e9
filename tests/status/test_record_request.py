"""Files of the last calls upon a signal: the job goes on, and its own handler still runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc, refused
from support.libraries import library
from support.ranks import INVALID_USAGE, REMOTE_ERROR, SUCCESS, ranks
from support.running import WAIT, until


def records(folder: Path, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """Waits until `holds` is true for the records of all files, and returns the records."""
    end = time.monotonic() + WAIT
    while True:
        found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        if holds(found):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.02)


def newest(record: dict[str, Any]) -> int:
    return max(int(entry["collective_seq_id"]) for entry in record["entries"])


def test_the_records_of_a_job_that_goes_on_and_its_trace(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    with ranks(library("pair"), 2, COLLC_DUMP=str(folder), COLLC_DUMP_SIGNAL="USR1") as team:
        assert [answer["result"] for answer in [*team.init(), *team.all(do="call", times=3)]] == [SUCCESS] * 4
        team.tell(0, do="call")
        until(team.processes[0].pid, lambda found: found["ranks"][0]["newest"] == 4)
        for rank in (0, 1):
            team.signal(rank, signal.SIGUSR1)
        first = records(folder, lambda found: len(found) == 2)
        assert [record["error"] for record in first] == [{"result": 0, "text": "signal 10 asked for it"}] * 2
        assert [newest(record) for record in first] == [4, 3]
        assert [entry["state"] for entry in first[0]["entries"]] == ["completed"] * 3 + ["started"]
        trace = tmp_path / "trace.json"
        found = collc("status", "--join", *sorted(folder.iterdir()), "--trace", trace, "--json")
        assert found.code == 0, found
        (communicator,) = json.loads(found.out)["communicators"]
        assert communicator["failure"] is None
        check_trace(json.loads(trace.read_text()))
        # The same file again, and the call that was in progress is none the worse.
        team.tell(1, do="call")
        assert [team.hear(rank)["result"] for rank in (0, 1)] == [SUCCESS] * 2
        for rank in (0, 1):
            team.signal(rank, signal.SIGUSR1)
        # The first file of rank 0 has four calls too, so only their states tell the new one.
        again = records(folder, lambda found: all(done_with(record, 4) for record in found))
        assert [newest(record) for record in again] == [4, 4]


def done_with(record: dict[str, Any], number: int) -> bool:
    """Returns whether the record ends with call `number` and shows all calls as completed."""
    return newest(record) == number and all(entry["state"] == "completed" for entry in record["entries"])


def check_trace(trace: dict[str, Any]) -> None:
    events = trace["traceEvents"]
    for event in events:
        assert isinstance(event["pid"], int)
        assert event["ph"] in ("M", "X")
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name[:11] for name in names] == ["rank 0 gpu0", "rank 1 gpu1"]
    for rank, count in enumerate((4, 3)):
        bars = [event for event in events if event["ph"] == "X" and event["pid"] == rank]
        assert [bar["args"]["number"] for bar in bars] == [*range(1, count + 1)]
        assert [bar["name"] for bar in bars[:3]] == ["all_reduce"] * 3
        for one, other in pairwise(bars):
            assert 0 <= one["ts"] <= one["ts"] + one["dur"] <= other["ts"] + 0.002  # rounded to nanoseconds
    assert min(event["ts"] for event in events if event["ph"] == "X") == 0


def test_a_record_of_a_failure_takes_the_place_of_one_on_request(tmp_path: Path) -> None:
    with ranks(library("pair"), 2, COLLC_DUMP=str(tmp_path), COLLC_DUMP_SIGNAL="USR2") as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 2
        team.tell(0, do="call")
        team.signal(0, signal.SIGUSR2)
        assert records(tmp_path, lambda found: len(found) == 1)[0]["error"]["result"] == 0
        team.signal(1, signal.SIGKILL)
        assert team.hear(0)["result"] == REMOTE_ERROR
        (failed,) = records(tmp_path, lambda found: len(found) == 1)
        assert failed["error"]["result"] == REMOTE_ERROR


@pytest.mark.parametrize("value", ["KILL", "9", "65", " USR1"])
def test_signals_that_cannot_be_asked_for(tmp_path: Path, value: str) -> None:
    with ranks(library("pair"), 1, COLLC_DUMP=str(tmp_path), COLLC_DUMP_SIGNAL=value) as team:
        (answer,) = team.init()
    assert answer["result"] == INVALID_USAGE
    assert f"COLLC_DUMP_SIGNAL={value} is neither USR1 nor USR2 nor a number from 34 to 64" in answer["text"]


def test_a_signal_without_a_folder_is_told_to_all_ranks() -> None:
    with ranks(library("pair"), 2) as team:
        team.ask(1, do="environment", name="COLLC_DUMP_SIGNAL", value="USR1")
        answers = team.init()
    assert answers[1]["result"] == INVALID_USAGE
    for answer in answers:
        assert answer["result"] != SUCCESS
        assert "COLLC_DUMP_SIGNAL is set, but not COLLC_DUMP" in answer["text"]


# Both ranks in this process. It prints how many threads it has for this, whether the signal was caught before and is
# now, and how often its own handler ran. In a forked child that runs too.
PROGRAM = """
import ctypes, os, pathlib, signal, sys, time
from collc.bench.nccl import Nccl
library, number, folder, own = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "own"
ran = []
def caught():
    line = [one for one in open("/proc/self/status") if one.startswith("SigCgt")][0]
    return int(line.split()[1], 16) >> (number - 1) & 1
if own:
    signal.signal(number, lambda *_: ran.append(os.getpid()))
before = caught()
lib = Nccl(library).lib
comms = (ctypes.c_void_p * 2)()
assert lib.ncclCommInitAll(comms, 2, None) == 0
if "COLLC_DUMP_SIGNAL" in os.environ:
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), number)
        time.sleep(0)
        os._exit(len(ran))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == own
    assert os.listdir(folder) == []
    os.kill(os.getpid(), number)
    while sum(name.endswith(".json") for name in os.listdir(folder)) < 2:
        time.sleep(0.01)
threads = [one.read_text().strip() for one in pathlib.Path("/proc/self/task").glob("*/comm")]
print(threads.count("collc-records"), before, caught(), len(ran))
"""


@pytest.mark.parametrize(
    ("asked", "own", "expected"),
    [("", False, "0 0 0 0"), ("34", False, "1 0 1 0"), ("34", True, "1 1 1 1")],
    ids=["not asked", "asked", "handler of its own"],
)
def test_a_thread_and_a_handler_only_where_asked_for(tmp_path: Path, asked: str, own: bool, expected: str) -> None:
    settings = {"COLLC_DUMP": str(tmp_path), **({"COLLC_DUMP_SIGNAL": asked} if asked else {})}
    words = [library("pair"), "34", tmp_path, "own" if own else "none"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{expected}\n"), done
    assert len(list(tmp_path.iterdir())) == (2 if asked else 0)


def test_a_trace_is_of_records(tmp_path: Path) -> None:
    assert "--trace is only for --join" in refused(collc("status", "--trace", tmp_path / "x"), code=2)
