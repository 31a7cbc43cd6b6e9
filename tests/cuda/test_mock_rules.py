"""The mock driver: what it shares, waits for and forbids, each shown by a library or a fault that trips on it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from mock_jobs import job
from test_cuda_runtime import mock_driver


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_processes_really_share_the_memory_of_gpus(protocol: str) -> None:
    assert job("collectives", COLLC_PROTO=protocol) == [[], [], []]


def test_what_the_driver_waits_for_while_a_kernel_waits() -> None:
    free = {"alloc", "another stream", "fill on another stream", "upload"}
    answer = job("what_the_driver_waits_for")[0]
    assert {name for name, back in answer.items() if back} == free, answer
    assert len(answer) == 11


def test_an_allocation_may_wait_for_kernels() -> None:
    answer = job("what_the_driver_waits_for", MOCK_ALLOC_WAITS="1")[0]
    assert not answer["alloc"], answer


def test_the_legacy_stream_waits_for_blocking_streams_alone() -> None:
    """`upload` waits in either case: the kernel's stream is blocking here; there no other is."""
    assert not job("what_the_driver_waits_for", given={"flags": 0})[0]["upload"]


def test_kernels_reach_only_what_was_opened_to_them() -> None:
    """A library whose peer access is lost, as the mock pretends here, does not get away with it."""
    answers = job("one_process", 1, MOCK_GPUS="3", MOCK_FORGET_PEERS="1")
    assert "the driver says 719" in str(answers), answers
    assert job("one_process", 1, MOCK_GPUS="3") == [True]


def test_memory_of_processes_is_closed_again() -> None:
    """A kernel that uses what its process has closed is told, as is one on another GPU than that which opened it."""
    answers = job("collectives", MOCK_CLOSE_EARLY="1")
    assert "the driver says 719" in str(answers), answers


def test_kernels_reach_only_virtual_memory_that_was_opened_to_their_gpu() -> None:
    """Peer access of contexts does not count there: a library that relies on it would not get away with it."""
    answers = job("collectives", MOCK_IPC="0", MOCK_FORGET_ACCESS="1")
    assert "(CUDA error 719)" in str(answers) or "the driver says 719" in str(answers), answers
    assert job("collectives", MOCK_IPC="0") == [[], [], []]


def test_what_the_driver_refuses_of_virtual_memory() -> None:
    said = job("what_is_refused", 1)[0]
    assert len(said) == 8
    assert set(said.values()) == {1}, said


def test_a_descriptor_keeps_its_memory() -> None:
    assert job("imported_after_the_end", 1) == [True]


def test_unmapping_waits_for_no_kernel() -> None:
    assert job("unmapped_under_a_kernel")[0] == 719


def test_hardware_queues_hold_up_what_stands_behind_a_launch_that_waits() -> None:
    """A kernel behind an event that has not come keeps another stream's kernel from starting if both share a queue."""
    assert job("queues", 1, MOCK_GPUS="3", MOCK_QUEUES="1", seconds=60) == [False]
    assert job("queues", 1, MOCK_GPUS="3", MOCK_QUEUES="8", seconds=60) == [True]


@pytest.mark.parametrize(("how", "status"), [("event", 0), ("query", 0), ("nothing", 719)])
def test_work_that_has_ended_is_ordered_only_before_what_waits_for_it(how: str, status: int) -> None:
    """Whether it ends before or after the other stream is told to wait makes no difference, nor does the load."""
    assert job("order_after_the_end", 1, given={"how": how}) == [status]


@pytest.mark.parametrize(("mode", "statuses"), [(0, [900, 900]), (2, [0, 0])])
def test_a_capture_forbids_what_would_wait_except_in_the_relaxed_mode(mode: int, statuses: list[int]) -> None:
    assert job("forbidden_in_a_capture", 1, given={"mode": mode}) == [statuses]


def test_what_the_driver_refuses_of_the_events_of_graphs() -> None:
    invalid, isolation, unsupported = 1, 905, 900
    assert job("events_of_graphs", 1) == [
        {
            "recorded for a graph outside of one": invalid,
            "waited for like a graph outside of one": invalid,
            "waited for, but never recorded": invalid,
            "of no graph, waited for in one": isolation,
            "the end of that capture": isolation,
            "asked for amid a capture": unsupported,
            "the end of the other capture": unsupported,
            "the number of a captured stream": unsupported,
            "the end of the third capture": unsupported,
        }
    ]


def test_graphs_that_do_not_wait_for_what_is_outside_of_them_are_found() -> None:
    """With a driver that forgets it, the calls of two graphs run into each other."""
    answers = job("graphs_on_two_streams", MOCK_FORGET_EXTERNAL="1", COLLC_TIMEOUT="3", seconds=60)
    assert answers != [[True] * 4] * 3


@pytest.mark.parametrize("scenario", ["streams_of_threads", "reused_streams"])
def test_streams_that_are_told_apart_by_their_handles_are_found(scenario: str) -> None:
    answers = job(scenario, MOCK_FORGET_STREAMS="1", COLLC_TIMEOUT="3", seconds=60)
    assert answers != [True] * 3


def test_devices_are_hidden_until_the_driver_is_started() -> None:
    asked = "import ctypes; mock = ctypes.CDLL('libcuda.so.1'); at = ctypes.c_void_p();"
    for started, expected in (("", "3"), ("mock.cuInit(0);", "0")):
        done = subprocess.run(
            [sys.executable, "-c", f"{asked} {started} print(mock.cuDevicePrimaryCtxRetain(ctypes.byref(at), 0))"],
            env={**os.environ, "LD_LIBRARY_PATH": str(mock_driver())},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected
