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

COPIES: dict[str, Any] = {"COLLC_COPY_ENGINES": "1", "COLLC_CHUNK": "8192"}
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
ALONE: dict[str, Any] = {"MOCK_MEMORY_OPERATIONS": "0"}  # one thread has the calls of all ranks, or kernels do them


def copied(
    scenario: str,
    given: dict[str, Any] | None = None,
    made: Path | None = None,
    seconds: float = 120,
    **settings: str,
) -> Any:
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
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=seconds)
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
    """Where nothing is staged GPUs without peer access, and memory that is not of cuMemAlloc; and by default."""
    gather = [["all_gather", "float", None, 0, 750, False]]
    assert launches([gather], MOCK_NO_PEER="0-2", **ALONE) == 3
    assert launches([gather], MOCK_NO_PEER="0-2") == 0
    assert launches([gather], direct(), COLLC_DIRECT_PROCESSES="1", **ALONE) == 3
    assert launches([gather], direct(), COLLC_DIRECT_PROCESSES="1") == 0
    assert launches([gather], COLLC_COPY_ENGINES="0") == 3


@pytest.mark.slow
@pytest.mark.parametrize("what", ["all_gather", "broadcast"])
def test_every_call_of_the_driver_for_one_group_fails_once(what: str) -> None:
    """Then kernels do the call, or it fails and so does the communicator; the next one is right."""
    said = copied("failing_steps", {"what": what})
    needed = {"record", "wait", "copy"}
    assert {name for name, _ in said} >= {"pointer_attribute", "is_capturing", *needed}
    for name, outcome in said:
        assert outcome != "right" if name in needed else outcome == "right", said


def test_groups_that_have_not_the_calls_of_all_ranks() -> None:
    assert copied("apart") == [0, True]
    assert copied("apart", **ALONE) == [3, True]


def test_calls_in_graphs() -> None:
    assert copied("in_graphs") == [0, True]
    assert copied("in_graphs", **ALONE) == [3, True]


@pytest.mark.parametrize("seed", ["1", *(pytest.param(str(seed), marks=pytest.mark.slow) for seed in range(2, 9))])
def test_calls_by_kernels_and_by_copies_come_one_after_the_other(seed: str) -> None:
    """On different streams, which nothing but the library orders."""
    assert copied("with_kernels", MOCK_SEED=seed) == [True] * 4


@pytest.mark.slow
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
    """Returns the log of one process with a thread for each rank."""
    log: list[str] = []
    own = {0: {"MOCK_GPUS": "3", "COLLC_DEBUG": "INFO", **COPIES, **settings}}
    assert job("ranks_as_threads", 1, given={"turns": 1}, log=log, own=own) == [[]]
    return "\n".join(line for line in log[0].splitlines() if "COPY_ENGINES" in line or "copy engines" in line)


def test_the_log_says_whether_it_is_followed() -> None:
    begin = "copy engines do all_gathers and broadcasts of 1 bytes and more"
    assert told().endswith(begin)
    assert begin + " that one group has of all ranks; kernels do others: the GPU or the driver of rank 0 lacks" in told(
        **ALONE
    )
    assert begin + " that one group has of all ranks; kernels do others: rank 0: pinning failed" in told(
        MOCK_NO_REGISTER="1"
    )
    assert told(MOCK_NO_PEER="0-1").endswith(begin + " through pinned host memory")
    assert told(COLLC_COPY_ENGINES="0") == ""
    log: list[str] = []
    apart = {rank: {"COLLC_DEBUG": "WARN", **COPIES, **ALONE} for rank in range(3)}
    assert job("collectives", log=log, own=apart) == [[], [], []]
    assert ["COLLC_COPY_ENGINES is not followed: the GPU" in one for one in log] == [True, False, False]


# The ranks of each process, and whether one thread of the process drives all of them.
OWNERS: list[tuple[list[list[int]], bool]] = [
    ([[0], [1], [2]], False),
    ([[0, 1, 2]], False),
    ([[0, 2], [1]], False),
    ([[0, 2], [1]], True),
    ([[0, 1, 2]], True),
]


def staged(owners: list[list[int]], grouped: bool, made: Path | None = None, **settings: str) -> None:
    """Pieces of 512 bytes, in calls of 1200 and 3600 bytes. Kernels compute only the sums."""
    given = {"owners": owners, "grouped": grouped, "count": 300, "graphs": True, "split": not grouped}
    own: dict[str, Any] = {"COLLC_COPY_ENGINES": "1200", "COLLC_CHUNK": "512", "MOCK_GPUS": "3", **settings}
    sums = 10 if grouped else 12
    answers = job("staged_calls", len(owners), given=given, made=made, **own)
    assert answers == [[[], sums * len(mine), 0] for mine in owners]


@pytest.mark.parametrize(("owners", "grouped"), OWNERS)
def test_ranks_that_decide_apart(owners: list[list[int]], grouped: bool) -> None:
    """Copies and kernels in turn on several streams, in place and not, in graphs, and in a split."""
    staged(owners, grouped)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"MOCK_VMM": "0"}, {"MOCK_QUEUES": "1"}, {"COLLC_CHUNK": "64"}, {"COLLC_CHUNK": "8192"}]
)
@pytest.mark.parametrize(("owners", "grouped"), OWNERS)
def test_ranks_that_decide_apart_on_other_machines(
    owners: list[list[int]], grouped: bool, settings: dict[str, Any]
) -> None:
    """Memory by file descriptors, one hardware queue for all streams of a GPU, many pieces and one."""
    for seed in range(1, 4):
        staged(owners, grouped, MOCK_SEED=str(seed), **settings)


@pytest.mark.slow
def test_buffers_that_no_other_gpu_may_touch() -> None:
    staged([[0], [1, 2]], False, direct(), COLLC_DIRECT_PROCESSES="1")


WAITS = {
    "timeout": "COLLC_TIMEOUT: after 1.0 s rank 0 waits for rank(s) 1, 2 to copy their part, by copy engines",
    "abort": "",
    "kill": "rank 1 has died",
    "leave": "rank 1 has destroyed its communicator before call 1",
}


@pytest.mark.parametrize(
    "how", [*("timeout", "kill"), *(pytest.param(one, marks=pytest.mark.slow) for one in ("abort", "leave"))]
)
@pytest.mark.parametrize("graph", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_stream_that_waits_for_ranks_that_do_not_come(how: str, graph: bool) -> None:
    settings = {**COPIES, "COLLC_CHUNK": "512", **({"COLLC_TIMEOUT": "1"} if how == "timeout" else {})}
    said = job("waiting_copies", given={"how": how, "graph": graph}, **settings)
    again: dict[str, Any] = {} if how in ("kill", "leave") else {"wrong": []}
    assert WAITS[how] in said[0].pop("text")  # another rank may have told it first
    assert said[0] == {"stands": 600, "soon": True, "kernels": 0, **again}
    assert said[1:] == ["status -9: " if how == "kill" else again, again]


def test_ranks_that_differ_are_told_so() -> None:
    said = job("collectives", own={2: {"COLLC_COPY_ENGINES": "4096"}}, **COPIES)
    wanted = "ranks 0 and 2 disagree: COLLC_COPY_ENGINES=1 on the one, 4096 on the other"
    assert [wanted in str(one) for one in said] == [True] * 3


# A call's number of operations on memory, the number for a rank of each kind, and those that only the watcher reads.
OPERATIONS = {"all_gather": (48, 16, list[int]()), "broadcast": (38, 23, [3, 7, 13])}


def left_out(what: str, drops: list[int]) -> list[int]:
    """Which of a call's operations on memory can be left out without being found out."""
    given = {"what": what, "operations": OPERATIONS[what][0], "apart": True, "drops": [*drops, -1]}
    answers = copied("dropped_operations", given, MOCK_PATIENCE_MS="300")
    assert answers[-1] == "right"
    return [at for at, answer in zip(drops, answers, strict=False) if answer == "right"]


def test_a_wait_and_a_write_that_are_left_out_are_found() -> None:
    assert left_out("all_gather", [1, 6]) == []


@pytest.mark.slow
@pytest.mark.parametrize("what", OPERATIONS)
def test_every_operation_on_memory_counts(what: str) -> None:
    _, rows, spare = OPERATIONS[what]
    for first in range(0, rows, 6):
        drops = list(range(first, min(first + 6, rows)))
        assert left_out(what, drops) == [at for at in spare if at in drops]


@pytest.mark.slow
@pytest.mark.parametrize("what", OPERATIONS)
def test_every_call_of_the_driver_fails_once(what: str) -> None:
    """Then the call fails, on all ranks, and no stream waits for ever; the next communicator is right."""
    said = copied("failing_steps", {"what": what, "apart": True})
    assert {name for name, _ in said} >= {"memory_operations", "copy", "record", "wait", "is_capturing"}
    for name, outcome in said:
        assert (outcome == "right") == (name == "stream_id"), said


@pytest.mark.slow
def test_every_step_of_a_creation_with_copies_fails_once() -> None:
    """If something fails that only copies need, all ranks go on without copies."""
    answers = job("failing_steps", seconds=240, COLLC_NCCL="/nowhere/libnccl.so.2", **COPIES)
    (*first, last), kernels_do = answers[0], ("stream_create", "register_host", "host_address")
    assert last == ["", "ours"]
    for name, text in first:
        assert text == "ours" or "no NCCL was found to take it" in text, (name, text)
    assert {name for name, text in first if text == "ours"} >= set(kernels_do)


def test_a_wrong_value_is_refused() -> None:
    answer = run([], [0, 1, 2], MOCK_GPUS="3", COLLC_COPY_ENGINES="large")
    assert "COLLC_COPY_ENGINES=large is not a number" in answer["error"]
