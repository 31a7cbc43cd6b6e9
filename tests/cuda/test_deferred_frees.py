"""Memory of an ended communicator stays as long as another process, a call or a graph may use it."""

from __future__ import annotations

from typing import Any

import pytest
from mock_jobs import job

UNHANDLED_CUDA_ERROR, REMOTE_ERROR = 1, 6
AGAIN: dict[str, Any] = {"MOCK_OLD_ADDRESSES": "1"}
WAYS: dict[str, dict[str, Any]] = {"descriptors": {}, "handles": {"MOCK_VMM": "0"}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ["abort", "revoke"])
def test_queued_calls_of_others_write_into_no_new_memory(way: str, end: str) -> None:
    assert job("calls_behind_others", given={"end": end}, **AGAIN, **WAYS[way]) == [0, 0, 0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("everyone", [False, True], ids=["one", "all"])
def test_a_graph_finds_its_memory_after_the_end(way: str, everyone: bool) -> None:
    given = {"end": "abort", "all": everyone, "seconds": 3}
    assert job("graph_after_the_end", given=given, **AGAIN, **WAYS[way]) == [0, 0, 0]


def test_an_abort_returns_before_importers_have_closed() -> None:
    """And the memory is freed when they have."""
    _, answer, _ = job("end_of_an_importer", given={"end": "abort"}, **WAYS["handles"])
    seconds, kept = answer
    assert kept > 0, answer
    assert seconds < 1, answer


def test_an_importer_that_never_closes_is_named_once() -> None:
    log: list[str] = []
    given = {"end": "abort", "keep": True, "seconds": 12}
    _, answer, _ = job("end_of_an_importer", given=given, log=log, COLLC_DEBUG="WARN", **WAYS["handles"])
    assert answer[1] > 0
    lines = [line for line in log[1].splitlines() if "stay" in line]
    assert len(lines) == 1, log[1]
    assert "rank 1" in lines[0], lines
    assert "ranks 0, 2" in lines[0], lines


def test_memory_behind_a_handle_that_the_driver_keeps_open_stays() -> None:
    """The mock driver ends a process that frees it."""
    answers = job("end_with_refused_closes", own={0: {"MOCK_FAIL": "ipc_close"}}, **WAYS["handles"])
    assert all(isinstance(kept, int) and kept > 0 for kept in answers), answers


def test_a_communicator_after_a_reset_of_its_gpu() -> None:
    """cudaDeviceReset ends contexts and kernels, and the next context has the same handle."""
    assert job("after_a_reset") == [True] * 3


@pytest.mark.parametrize("way", WAYS)
def test_a_reset_under_communicators_fails_them_on_all_ranks(way: str) -> None:
    """The mock driver ends a process that uses pinned memory or events of a context that was reset."""
    answers = job("reset_of_a_rank", **WAYS[way])
    for rank, (errors, codes, text, works) in enumerate(answers):
        expected = UNHANDLED_CUDA_ERROR if rank == 1 else REMOTE_ERROR
        assert (errors, codes, works) == ([expected] * 2, [expected] * 2, True), (rank, answers)
        assert "GPU 1 of rank 1 was reset (cudaDeviceReset)" in text


def test_what_a_reset_has_freed_is_not_freed_again() -> None:
    assert job("frees_after_a_reset", given={"end": "abort"}, **AGAIN) == [0, 0, 0]
