"""Creations that go wrong between their rounds, on one rank only, or because ranks do not agree: all fail at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.libraries import fake_nccl, library, shared_library
from support.ranks import INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, Ranks, ranks

HERE = Path(__file__).parent
AT_ONCE = 20  # seconds, for a busy machine; the limits below are far from it


@contextmanager
def harmed(machine: str, nranks: int, limit: str, **harm: str) -> Iterator[Ranks]:
    """Ranks, some with a fault (`rank1="connect:kill"`) while the communicator is created."""
    preload = str(shared_library(HERE / "hold_up.c"))
    with ranks(library(machine), nranks, LD_PRELOAD=preload, COLLC_BOOTSTRAP_TIMEOUT=limit) as team:
        for rank, point in harm.items():
            team.ask(int(rank.removeprefix("rank")), do="environment", name="HOLD_UP", value=point)
        yield team


def begin(team: Ranks, joining: list[int] | None = None) -> str:
    """Sends ranks into a creation; the unique id."""
    nranks = len(team.processes)
    unique = str(team.ask(0, do="id")["id"])
    for rank in range(nranks):
        team.ask(rank, do="open")  # it has started
    for rank in joining if joining is not None else range(nranks):
        team.tell(rank, do="init", nranks=nranks, id=unique, rank=rank)
    return unique


def outcome(team: Ranks, listening: list[int]) -> tuple[list[dict[str, Any]], float]:
    """The answers of ranks and how long the last of them took."""
    start = time.monotonic()
    return [team.hear(rank) for rank in listening], time.monotonic() - start


@pytest.mark.parametrize(("machine", "nranks"), [("pair", 2), ("odd", 3)])
def test_a_rank_that_dies_before_it_fetches_the_memory(machine: str, nranks: int) -> None:
    with harmed(machine, nranks, "60", rank1="connect:kill") as team:
        begin(team)
        answers, seconds = outcome(team, [r for r in range(nranks) if r != 1])
    assert {answer["result"] for answer in answers} == {REMOTE_ERROR}
    assert all("rank 1 left while the communicator was made" in answer["text"] for answer in answers)
    assert seconds < AT_ONCE


@pytest.mark.parametrize(("machine", "nranks"), [("pair", 2), ("odd", 3)])
def test_a_rank_that_stops_before_it_fetches_the_memory(machine: str, nranks: int) -> None:
    with harmed(machine, nranks, "1", rank1="connect:stop") as team:
        begin(team)
        others = [r for r in range(nranks) if r != 1]
        answers, seconds = outcome(team, others)
        assert {answer["result"] for answer in answers} == {SYSTEM_ERROR}
        assert all("rank 1 did not fetch the shared memory within 1 s" in answer["text"] for answer in answers)
        assert seconds < AT_ONCE
        team.signal(1, signal.SIGCONT)
        assert team.hear(1)["result"] != SUCCESS


def test_a_rank_that_stops_before_a_round() -> None:
    with harmed("odd", 3, "1", rank2="read:stop") as team:
        begin(team)
        answers, _ = outcome(team, [0, 1])
    assert {answer["result"] for answer in answers} == {SYSTEM_ERROR}
    assert all("rank 2 did not take the next step of the creation within 1 s" in a["text"] for a in answers)


def test_a_stopped_rank_zero_does_not_hold_up_the_others() -> None:
    with harmed("odd", 3, "1", rank1="connect:1", rank2="connect:1") as team:
        begin(team)
        time.sleep(0.5)
        team.signal(0, signal.SIGSTOP)  # with its listener, and the socket that hands out the memory
        answers, seconds = outcome(team, [1, 2])
    assert {answer["result"] for answer in answers} == {SYSTEM_ERROR}
    assert seconds < AT_ONCE + 3


def test_a_rank_that_dies_between_rounds_while_the_others_are_busy() -> None:
    with harmed("odd", 3, "60", rank0="read:0.7", rank1="read:kill", rank2="read:0.7") as team:
        begin(team)
        answers, seconds = outcome(team, [0, 2])
    assert {answer["result"] for answer in answers} == {REMOTE_ERROR}
    assert all("rank 1 left while the communicator was made" in answer["text"] for answer in answers)
    assert seconds < AT_ONCE


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("COLLC_TIMEOUT", "soon", "COLLC_TIMEOUT=soon is not a number from 0 to 1e+09"),
        ("COLLC_BOOTSTRAP_TIMEOUT", "-1", "COLLC_BOOTSTRAP_TIMEOUT=-1 is not a number from 0.1 to 1e+06"),
        ("COLLC_GPUS", "0,1,x", "COLLC_GPUS: x is no GPU of this library's topology, which has 3"),
        ("COLLC_CHUNK", "15", "COLLC_CHUNK=15 is no multiple of 16 bytes"),
        ("COLLC_PROTO", "LLL", "COLLC_PROTO=LLL is not Simple, LL or LL128"),
        ("COLLC_DIRECT", "2", "COLLC_DIRECT=2 is not a number from 0 to 1"),
    ],
)
def test_a_variable_that_is_wrong_on_one_rank_ends_all(name: str, value: str, said: str) -> None:
    # The others have said something else, which is no news beside that.
    with ranks(library("odd"), 3, COLLC_PROTO="LL", COLLC_CHUNK="4096") as team:
        team.ask(1, do="environment", name=name, value=value)
        begin(team)
        answers, seconds = outcome(team, [0, 1, 2])
    assert {answer["result"] for answer in answers} == {INVALID_USAGE}
    assert all(f"rank 1: {said}" in answers[rank]["text"] for rank in (0, 2))
    assert said in answers[1]["text"]
    assert seconds < AT_ONCE


def test_a_failed_creation_ends_for_ranks_that_come_later_too() -> None:
    with ranks(library("odd"), 3, COLLC_BOOTSTRAP_TIMEOUT="60") as team:
        team.ask(1, do="environment", name="COLLC_TIMEOUT", value="soon")
        unique = begin(team, [0, 1])
        answers, seconds = outcome(team, [0, 1])
        answers.append(team.ask(2, do="init", nranks=3, id=unique, rank=2))
    assert {answer["result"] for answer in answers} == {INVALID_USAGE}
    assert all("rank 1: COLLC_TIMEOUT=soon is not" in answers[rank]["text"] for rank in (0, 2))
    assert seconds < AT_ONCE


@pytest.mark.parametrize("disabled", [[1], [1, 2]])
def test_one_rank_with_collc_disable_sends_all_to_the_real_nccl(disabled: list[int]) -> None:
    with ranks(library("odd"), 3, COLLC_NCCL=str(fake_nccl(HERE / "fake_nccl.c"))) as team:
        for rank in disabled:
            team.ask(rank, do="environment", name="COLLC_DISABLE", value="1")
        begin(team)
        answers, seconds = outcome(team, [0, 1, 2])
        assert {answer["result"] for answer in answers} == {SUCCESS}, answers
        # The one that plays the real NCCL has no broadcast.
        refused = team.all(do="call", collective="broadcast")
    assert all("ncclBroadcast: this NCCL does not have it" in answer["text"] for answer in refused)
    assert seconds < AT_ONCE


def test_without_a_real_nccl_all_hear_who_has_collc_disable() -> None:
    with ranks(library("odd"), 3, COLLC_NCCL="/nowhere/libnccl.so.2") as team:
        team.ask(2, do="environment", name="COLLC_DISABLE", value="1")
        begin(team)
        answers, _ = outcome(team, [0, 1, 2])
    assert {answer["result"] for answer in answers} == {INVALID_USAGE}
    assert all("COLLC_DISABLE is set on rank 2, and no NCCL was found" in answer["text"] for answer in answers)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ("1", "COLLC_GPUS names 1 GPU for a communicator of 3 ranks: name one for each, in the ranks' order"),
        ("2,0", "COLLC_GPUS names 2 GPUs for a communicator of 3 ranks"),
        ("0,1,1", "COLLC_GPUS names GPU 1 twice"),
        ("0,1,3", "COLLC_GPUS: 3 is no GPU of this library's topology, which has 3"),
    ],
)
def test_gpus_that_do_not_fit_the_ranks(gpus: str, said: str) -> None:
    # A real NCCL is there: a mistyped list is no reason to go to it.
    with ranks(library("odd"), 3, COLLC_GPUS=gpus, COLLC_NCCL=str(fake_nccl(HERE / "fake_nccl.c"))) as team:
        answers = team.init()
    assert {answer["result"] for answer in answers} == {INVALID_USAGE}
    assert all(said in answer["text"] for answer in answers)


def test_a_list_for_more_ranks_is_one_for_other_communicators() -> None:
    with ranks(library("pair"), 1, COLLC_GPUS="1,0") as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS]
    with ranks(library("dgx1p:0,1,2,3,4,5,6,7/0,1,4/0,1,2,3/0,1,4,6"), 3, COLLC_GPUS="7,6,5,4,3,2,1,0") as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3


@pytest.mark.parametrize("ends", ["at once", "in order"])
def test_rank_zero_leaves_its_reason_behind(ends: str) -> None:
    # The listener is in its process, which ends without another word.
    with ranks(library("odd"), 3, COLLC_BOOTSTRAP_TIMEOUT="60") as team:
        unique = str(team.ask(0, do="id")["id"])
        before = int(team.ask(0, do="open")["descriptors"])
        for rank in (1, 2):
            team.tell(rank, do="init", nranks=3, id=unique, rank=rank)
        while int(team.ask(0, do="open")["descriptors"]) < before + 2:
            time.sleep(0.05)  # until both have joined
        team.ask(0, do="environment", name="COLLC_TIMEOUT", value="soon")
        team.tell(0, do="init", nranks=3, id=unique, rank=0, ends=ends)
        answers, seconds = outcome(team, [1, 2])
        assert team.processes[0].wait(60) == 1
    assert {answer["result"] for answer in answers} == {INVALID_USAGE}
    assert all("rank 0: COLLC_TIMEOUT=soon is not a number" in answer["text"] for answer in answers)
    assert seconds < AT_ONCE


def test_a_process_that_ends_in_order_tells_ranks_that_come_a_little_late() -> None:
    with ranks(library("odd"), 2, COLLC_BOOTSTRAP_TIMEOUT="60") as team:
        team.ask(1, do="open")
        unique = str(team.ask(0, do="id")["id"])
        team.ask(0, do="environment", name="COLLC_TIMEOUT", value="soon")
        team.tell(0, do="init", nranks=2, id=unique, rank=0, ends="in order")
        time.sleep(0.3)
        answer = team.ask(1, do="init", nranks=2, id=unique, rank=1)
        assert "rank 0: COLLC_TIMEOUT=soon is not a number" in answer["text"]
        assert team.processes[0].wait(60) == 1


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_configuration_on_one_rank_ends_all(wrong: int) -> None:
    with ranks(library("odd"), 3, COLLC_BOOTSTRAP_TIMEOUT="100") as team:
        unique = str(team.ask(0, do="id")["id"])
        for rank in range(3):
            config = {"config": "bad"} if rank == wrong else {}
            team.tell(rank, do="init", nranks=3, id=unique, rank=rank, **config)
        answers, seconds = outcome(team, [0, 1, 2])
    assert {answer["result"] for answer in answers} == {INVALID_ARGUMENT}
    assert all("the configuration was not initialized" in answer["text"] for answer in answers)
    assert all(f"rank {wrong}: " in answers[rank]["text"] for rank in range(3) if rank != wrong)
    assert seconds < 2 * AT_ONCE


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"color": 0, "config": "bad"}, "the configuration was not initialized"),
        ({"color": -7}, "color -7 is negative"),
    ],
)
def test_a_wrong_argument_of_a_split_ends_it_on_all_ranks(order: dict[str, Any], said: str) -> None:
    with ranks(library("odd"), 3, COLLC_BOOTSTRAP_TIMEOUT="100") as team:
        assert {answer["result"] for answer in team.init()} == {SUCCESS}
        for _ in range(3):
            for rank in (0, 2):
                team.tell(rank, do="split", color=0)
            team.tell(1, do="split", **order)
            answers, seconds = outcome(team, [0, 1, 2])
            assert {answer["result"] for answer in answers} == {INVALID_ARGUMENT}
            assert all(f"rank 1: {said}" in answers[rank]["text"] for rank in (0, 2))
            assert seconds < AT_ONCE
            # The communicator itself is sound.
            assert {answer["result"] for answer in team.all(do="split", color=0)} == {SUCCESS}
            assert {answer["result"] for answer in team.all(do="call")} == {SUCCESS}


@pytest.mark.parametrize("started", range(4))
def test_threads_that_cannot_start_end_the_creation(started: int) -> None:
    """The listener's is the first; then one per rank."""
    preload = str(shared_library(HERE / "refuse_threads.c"))
    with ranks(library("odd"), 1, LD_PRELOAD=preload, COLLC_BOOTSTRAP_TIMEOUT="100") as team:
        team.ask(0, do="environment", name="THREADS", value=str(started))
        start = time.monotonic()
        answer = team.ask(0, do="init_all", nranks=3)
        assert answer["result"] == SYSTEM_ERROR
        assert "cannot start a thread: Resource temporarily unavailable" in answer["text"]
        assert time.monotonic() - start < 2 * AT_ONCE
        team.ask(0, do="environment", name="THREADS", value="1000")
        assert team.ask(0, do="init_all", nranks=3)["result"] == SUCCESS


@pytest.mark.parametrize("dies", [0, 1])
def test_a_forked_child_does_not_hide_the_end_of_its_parent(dies: int) -> None:
    # Rank 0's process also has the listener.
    with ranks(library("odd"), 3, COLLC_BOOTSTRAP_TIMEOUT="100") as team:
        unique = str(team.ask(0, do="id")["id"])
        other = 1 - dies
        team.ask(other, do="open")  # it has started
        team.ask(dies, do="fork_later", after=1.0)
        for rank in (0, 1):
            team.tell(rank, do="init", nranks=3, id=unique, rank=rank)
        time.sleep(2)
        team.signal(dies, signal.SIGKILL)
        answers, seconds = outcome(team, [other])
    assert answers[0]["result"] == REMOTE_ERROR
    assert ("rank 1 left" if dies == 1 else "the process that made the id has gone") in answers[0]["text"]
    assert seconds < 15  # the child lives for 20 s


def test_ranks_that_are_forked_off_after_their_id_was_made() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "forked_ranks.py"), str(library("pair"))],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "COLLC_BOOTSTRAP_TIMEOUT": "60", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
