"""Which ranks have died, whatever a process does with its descriptors, children and threads."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from support.libraries import client, library, runtime_program
from support.ranks import REMOTE_ERROR, SUCCESS, ranks

HERE = Path(__file__).parent


def lives(many: int, end: str) -> tuple[int, int]:
    """How many lives of a process were seen before its end, and how many ends after it."""
    program = runtime_program(HERE / "liveness.cpp", frozenset({"control_liveness", "base_status"}))
    done = subprocess.run([program, str(many), end], capture_output=True, text=True, check=True, timeout=100)
    before, after = done.stdout.split()
    return int(before), int(after)


@pytest.mark.parametrize("end", ["kill", "exit", "exec", "closed", "orphan"])
@pytest.mark.parametrize("many", [1, 5000])
def test_every_end_is_seen(many: int, end: str) -> None:
    """5000: more than the kernel follows of one thread's list."""
    assert lives(many, end) == (many, many)


@pytest.mark.parametrize("end", ["stop", "child", "thread"])
def test_what_is_no_end_is_not_taken_for_one(end: str) -> None:
    assert lives(100, end) == (100, 0)


def test_what_was_given_up_is_nobodys_end() -> None:
    """Of 4000 every second is given up and half of these taken again, before the end."""
    assert lives(4000, "release") == (4000, 3000)


HABITS = ["closes", "forks", "executes", "forks and dies", "closes and dies", "forks and closes"]


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("machine", ["odd", "cores"])
def test_what_ranks_do_beside_their_calls(machine: str, habit: str) -> None:
    """A rank that closes all descriptors, or has children of any kind, lives; one that dies is noticed."""
    program = client(HERE / "habits.c", machine)
    done = subprocess.run([program, "3", habit], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as it should be\n"


def test_a_stopped_rank_is_waited_for() -> None:
    with ranks(library("odd"), 3) as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        team.signal(2, signal.SIGSTOP)
        for rank in (0, 1):
            team.tell(rank, do="call")
        with pytest.raises(AssertionError, match="did not answer"):
            team.hear(0, timeout=1)
        team.signal(2, signal.SIGCONT)
        team.tell(2, do="call")
        assert [team.hear(rank)["result"] for rank in range(3)] == [SUCCESS] * 3
        team.signal(2, signal.SIGSTOP)
        for rank in (0, 1):
            team.tell(rank, do="call")
        team.signal(2, signal.SIGKILL)
        assert [team.hear(rank)["result"] for rank in (0, 1)] == [REMOTE_ERROR] * 2
