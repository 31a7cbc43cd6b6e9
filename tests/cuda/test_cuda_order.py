"""On the mock driver: what orders the calls of one communicator, and how processes end that do not destroy theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from mock_jobs import job
from support.ranks import INVALID_USAGE, REMOTE_ERROR
from test_cuda_runtime import driver_without


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_graphs_of_one_communicator_on_several_streams(protocol: str) -> None:
    """And calls outside of graphs; test_mock_rules.py shows that nothing but the library's events orders them."""
    assert job("graphs_on_two_streams", COLLC_PROTO=protocol) == [[True] * 4] * 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [str(seed) for seed in range(2, 30)])
def test_graphs_on_several_streams_under_other_schedules(seed: str) -> None:
    own = dict.fromkeys(range(3), {} if int(seed) % 2 else {"MOCK_NO_PEER": "all"})
    assert job("graphs_on_two_streams", given={"turns": 9}, MOCK_SEED=seed, own=own) == [[True] * 9] * 3


@pytest.mark.parametrize("scenario", ["graphs_captured_in_turn", "more_captures_than_are_remembered"])
def test_several_captures(scenario: str) -> None:
    assert job(scenario) == [True] * 3


def test_a_communicator_that_ends_waits_for_its_graphs() -> None:
    assert job("ended_behind_a_graph") == [True] * 3


@pytest.mark.parametrize("scenario", ["streams_of_threads", "reused_streams", "legacy_stream"])
def test_streams_that_are_not_what_their_handles_seem(scenario: str, tmp_path: Path) -> None:
    assert job(scenario) == [True] * 3
    # Before CUDA 12 nothing says which stream a handle is.
    assert job(scenario, LD_LIBRARY_PATH=driver_without("cuStreamGetId", tmp_path)) == [True] * 3


def test_equal_handles_of_streams_of_several_gpus() -> None:
    assert job("equal_handles_of_gpus", 1, MOCK_GPUS="3") == [[True] * 3]


@pytest.mark.parametrize("leave", [[0], [1, 2], [0, 1, 2]])
def test_processes_that_end_without_destroying(leave: list[int]) -> None:
    statuses: list[int] = []
    assert job("left_without_destroy", given={"leave": leave}, statuses=statuses, seconds=40) == [True] * 3
    assert statuses == [0] * 3


def test_calls_after_a_process_has_ended_without_destroying_fail() -> None:
    statuses: list[int] = []
    answers = job("left_without_destroy", given={"leave": [1], "call": True}, statuses=statuses, seconds=40)
    assert answers == [[True, REMOTE_ERROR], True, [True, REMOTE_ERROR]]
    assert statuses == [0] * 3


@pytest.mark.parametrize("end", ["at once", "exit"])
def test_a_child_that_is_forked_amid_calls_takes_nothing_with_it(end: str) -> None:
    assert job("forked", given={"end": end}) == [True] * 3


def test_a_forked_child_is_told_that_the_communicator_is_not_its_own() -> None:
    words = f"{INVALID_USAGE} ncclAllReduce: the communicator belongs to the parent of this forked process"
    assert job("refused_in_a_child") == [words] * 3
