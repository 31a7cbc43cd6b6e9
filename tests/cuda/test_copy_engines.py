"""Large all_gathers and broadcasts by copy engines (COLLC_COPY_ENGINES), on the mock driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mock_jobs import job
from support.ranks import REMOTE_ERROR
from test_cuda_runtime import HERE, library, mock_driver, run, run_library
from test_direct_jobs import direct

COPIES = {"COLLC_COPY_ENGINES": "1"}
# Every root, type size, in place and not, sizes from one element to more than a part of a broadcast has.
CALLS = [
    [[name, type_name, None, root, count, in_place]]
    for name in ("all_gather", "broadcast")
    for root in ((0, 1, 2) if name == "broadcast" else (0,))
    for type_name in ("uint8", "half", "float", "double")
    for count in (0, 1, 129, 777)
    for in_place in (False, True)
]
PLACES = [[0, 1, 2], [2, 0, 0], [0, 0, 0]]


def copied(scenario: str, given: dict[str, Any] | None = None, made: Path | None = None, **settings: str) -> Any:
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(mock_driver()),
        "COLLC_BOOTSTRAP_TIMEOUT": "60",
        "OPENBLAS_NUM_THREADS": "1",
        "MOCK_GPUS": "3",
        **COPIES,
        **settings,
    }
    command = [sys.executable, str(HERE / "mock_copies.py"), str(made or library()), scenario, json.dumps(given or {})]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("devices", [PLACES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in PLACES[1:])])
def test_no_kernel_runs(devices: list[int]) -> None:
    answer = run(CALLS, devices, COLLC_SHARE_GPU="1", MOCK_GPUS="3", **COPIES)
    assert answer.get("wrong") == [], answer
    counts = answer["calls"]
    assert (counts["launch"], counts["launch_cooperative"]) == (0, 0)
    assert counts["copy"] > 3 * len(CALLS)


def launches(script: list[Any], made: Path | None = None, **settings: str) -> int:
    """How many kernels run for the calls of three GPUs, which must be right."""
    answer = run_library(made or library(), script, [0, 1, 2], **{"MOCK_GPUS": "3", **COPIES, **settings})
    assert answer.get("wrong") == [], answer
    return int(answer["calls"]["launch"])


def test_what_kernels_do_all_the_same() -> None:
    """Sums, and smaller calls."""
    calls = [["all_gather", "float", None, 0, count, False] for count in (749, 750)]
    sums = [[name, "float", "sum", 0, 750, False] for name in ("all_reduce", "reduce", "reduce_scatter")]
    assert launches([[one] for one in (*calls, *sums)], COLLC_COPY_ENGINES="3000") == 4 * 3


@pytest.mark.slow
def test_where_kernels_do_everything() -> None:
    """GPUs without peer access, memory that is not of cuMemAlloc, and by default."""
    gather = [["all_gather", "float", None, 0, 750, False]]
    assert launches([gather], MOCK_NO_PEER="0-2") == 3
    assert launches([gather], direct(), COLLC_DIRECT_PROCESSES="1") == 3
    assert launches([gather], COLLC_COPY_ENGINES="0") == 3


@pytest.mark.slow
@pytest.mark.parametrize("what", ["all_gather", "broadcast"])
def test_every_call_of_the_driver_fails_once(what: str) -> None:
    """Then kernels do the call, or it fails and so does the communicator; the next one is right."""
    said = copied("failing_steps", {"what": what})
    needed = {"record", "wait", "copy"}
    assert {name for name, _ in said} >= {"pointer_attribute", "is_capturing", *needed}
    for name, outcome in said:
        assert outcome != "right" if name in needed else outcome == "right", said


def test_groups_that_have_not_the_calls_of_all_ranks() -> None:
    assert copied("apart") == [3, True]


def test_calls_in_graphs() -> None:
    assert copied("in_graphs") == [3, True]


@pytest.mark.parametrize("seed", ["1", *(pytest.param(str(seed), marks=pytest.mark.slow) for seed in range(2, 9))])
def test_calls_by_kernels_and_by_copies_come_one_after_the_other(seed: str) -> None:
    """On different streams, which nothing but the library orders."""
    assert copied("with_kernels", MOCK_SEED=seed) == [True] * 4


def test_every_wait_of_an_all_gather_counts() -> None:
    """That all are ready before any copy begins, and that all copies are done: one that is missing is found."""
    answers = copied("dropped_waits", {"what": "all_gather", "waits": 8})
    assert "right" not in answers[:-1]
    assert answers[-1] == "right"


@pytest.mark.slow
def test_the_waits_of_a_broadcast_that_count() -> None:
    """Not those for or of ranks that have nothing to read or write in that step: the root as its data are ready (0),
    a rank that only receives (3, 5), and the root while the others hand on its data (6, 10)."""
    answers = copied("dropped_waits", {"what": "broadcast", "waits": 12})
    assert [at for at, answer in enumerate(answers) if answer == "right"] == [0, 3, 5, 6, 10, 12]


def test_a_call_behind_a_kernel_that_waits_too_long() -> None:
    said = copied("behind_a_kernel", {"abort": False}, COLLC_TIMEOUT="1")
    assert said["stands"] == [600] * 3  # rank 0 waits, and the others for it
    assert (said["error"], said["ended"], said["soon"], said["again"]) == (REMOTE_ERROR, 0, True, True)
    assert "rank 0 waits for rank 1 to send" in said["text"]


def test_a_call_behind_a_kernel_that_is_aborted() -> None:
    said = copied("behind_a_kernel", {"abort": True})
    assert said["stands"] == [600] * 3
    assert (said["ended"], said["soon"], said["again"]) == (0, True, True)


def told(**settings: str) -> str:
    """What one process with all ranks says of it."""
    log: list[str] = []
    own = {0: {"MOCK_GPUS": "3", "COLLC_DEBUG": "INFO", **COPIES, **settings}}
    assert job("ranks_as_threads", 1, given={"turns": 1}, log=log, own=own) == [[]]
    return "\n".join(line for line in log[0].splitlines() if "COPY_ENGINES" in line or "copy engines" in line)


def test_the_log_says_whether_it_is_followed() -> None:
    assert "copy engines do all_gathers and broadcasts of 1 bytes and more" in told()
    assert "COLLC_COPY_ENGINES is not followed: some GPUs do not write into each" in told(MOCK_NO_PEER="0-1")
    assert told(COLLC_COPY_ENGINES="0") == ""
    log: list[str] = []
    apart = {rank: {"COLLC_DEBUG": "WARN", **COPIES} for rank in range(3)}
    assert job("collectives", log=log, own=apart) == [[], [], []]
    assert ["COLLC_COPY_ENGINES is not followed: some ranks are in other processes" in one for one in log] == [
        True,
        False,
        False,
    ]


def test_a_wrong_value_is_refused() -> None:
    answer = run([], [0, 1, 2], MOCK_GPUS="3", COLLC_COPY_ENGINES="large")
    assert "COLLC_COPY_ENGINES=large is not a number" in answer["error"]
