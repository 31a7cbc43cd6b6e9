"""Jobs of several processes on the mock driver: what real programs do, and what the machine may forbid them."""

from __future__ import annotations

import pytest
from mock_jobs import job


def fails(what: str) -> pytest.MarkDecorator:
    """What the library does not do yet: a test that passes by itself one day has to lose this mark."""
    return pytest.mark.xfail(strict=True, reason=what)


@fails("transfers need both ends in one process")
def test_ranks_send_to_their_neighbours() -> None:
    assert job("neighbours") == [True] * 3


@fails("a refused send breaks the communicator")
def test_a_refused_call_changes_nothing() -> None:
    for answer in job("refused_calls"):
        assert all(said == [True, True] for said in answer.values()), answer


@fails("creation waits for every kernel of the GPU")
def test_a_communicator_is_made_beside_a_waiting_kernel() -> None:
    assert job("creation_beside_a_waiting_kernel", COLLC_BOOTSTRAP_TIMEOUT="10") == [True] * 3


@fails("the end of a communicator waits for every kernel of the GPU")
@pytest.mark.parametrize("end", ["abort", "destroy"])
def test_a_communicator_ends_beside_a_waiting_kernel(end: str) -> None:
    answers = job("end_beside_a_waiting_kernel", given={"end": end}, seconds=40)
    assert all(isinstance(answer, float) and answer < 10 for answer in answers), answers


@pytest.mark.xfail(reason="groups are launched in the order of addresses in memory: not always a fault")
def test_two_communicators_in_one_group_in_every_order() -> None:
    assert job("two_in_a_group", seconds=40) == [True] * 3


@fails("ranks reach each other by peer access alone")
@pytest.mark.parametrize("pairs", ["all", "0-1"])
def test_gpus_without_peer_access(pairs: str) -> None:
    assert job("collectives", MOCK_NO_PEER=pairs) == [[], [], []]


@fails("ranks reach each other by IPC alone")
def test_processes_without_ipc() -> None:
    assert job("collectives", MOCK_IPC="0") == [[], [], []]


def test_one_visible_gpu_per_process() -> None:
    own = {rank: {"CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(3)}
    assert job("collectives", own=own) == [[], [], []]
