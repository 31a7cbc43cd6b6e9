"""A rank's plain store is visible to ranks that fall asleep, abort the communicator, or destroy it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path

import pytest
from support.libraries import client, library, run_client, runtime_program, shared_library
from support.ranks import SUCCESS, Ranks, ranks

HERE = Path(__file__).parent


def refusing(when: str) -> dict[str, str]:
    return {"LD_PRELOAD": str(shared_library(HERE / "refuse_membarrier.c")), "REFUSE": when}


def refusals(done: subprocess.CompletedProcess[str]) -> list[int]:
    """How often each process was refused."""
    return [int(times) for times in re.findall(r"refused (\d+) times", done.stderr)]


def barriers(team: Ranks) -> list[int]:
    """How often each rank's process has asked for one."""
    return [answer["count"] for answer in team.all(do="barriers")]


def fenced(refuse: str) -> bool:
    """Returns whether plain stores need a barrier of the rare side."""
    return platform.machine() == "x86_64" and refuse != "all"


def missed(refuse: str, *arguments: str) -> int:
    """How often neither side saw the other's store."""
    program = runtime_program(
        HERE / "fences.cpp", frozenset({"control_segment", "control_liveness", "control_call_log", "base_status"})
    )
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, **refusing(refuse)},
    )
    assert (sum(refusals(done)) > 0) == (refuse != "none")
    return int(done.stdout)


@pytest.mark.parametrize("refuse", [pytest.param("none", marks=pytest.mark.slow), "all"])
def test_one_side_sees_what_the_other_stored(refuse: str) -> None:
    assert missed(refuse) == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere frequent stores are sequentially consistent")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core sees its own stores")
def test_without_the_fence_both_miss_it() -> None:
    if not any(missed("none", "unsettled") for _ in range(5)):
        pytest.skip("threads seldom meet on cores that others use too")


@pytest.mark.parametrize(("refuse", "ways"), [("all", "threads"), ("all", "processes"), ("one", "processes")])
def test_every_call_without_membarrier(refuse: str, ways: str) -> None:
    done = run_client([client(HERE / "client.c", "cores"), ways, "3", "mixed"], settings=refusing(refuse))
    assert len(refusals(done)) == (3 if (refuse, ways) == ("all", "processes") else 1)


@pytest.mark.parametrize("ways", ["threads", "processes"])
@pytest.mark.parametrize("refuse", ["all", "late"])
def test_an_abort_while_others_read_without_membarrier(refuse: str, ways: str) -> None:
    done = run_client([client(HERE / "abort.c", "cores"), ways, "3", "memalloc"], " calls\n", refusing(refuse))
    assert sum(refusals(done)) > 0


@pytest.mark.parametrize("refuse", ["none", "all", "late"])
def test_no_wake_is_lost(refuse: str) -> None:
    """Sleepers that nothing else would wake."""
    with ranks(library("cores"), 3, **refusing(refuse), ENDLESS="1") as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        before = barriers(team)
        # Ranks that wait for 2 ms or longer sleep, unless other processes want the cores.
        for number, seconds in enumerate([*(0.002 * late for late in range(12)), 0.7, 0.7, 0.7]):
            late = number % 3
            for rank in range(3):
                if rank != late:
                    team.tell(rank, do="call")
            time.sleep(seconds)
            team.tell(late, do="call")
            assert [team.hear(rank)["result"] for rank in range(3)] == [SUCCESS] * 3
        # A lost wake-up needs a race of nanoseconds, but the barriers that sleeping ranks issued are always counted.
        slept = [after > count for after, count in zip(barriers(team), before, strict=True)]
        assert slept == [fenced(refuse)] * 3


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere who falls asleep asks for no membarrier")
def test_who_sleeps_on_pays_once() -> None:
    """Looking for dead ranks every 20 ms does not interrupt other cores."""
    with ranks(library("cores"), 3, **refusing("none")) as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        before = barriers(team)
        for rank in (0, 1):
            team.tell(rank, do="call")
        time.sleep(1)
        team.tell(2, do="call")
        assert [team.hear(rank)["result"] for rank in range(3)] == [SUCCESS] * 3
        asked = [after - count for after, count in zip(barriers(team), before, strict=True)]
        assert all(1 <= asked[rank] <= 10 for rank in (0, 1)), asked


@pytest.mark.parametrize("refuse", ["none", "all"])
def test_who_breaks_a_communicator_pays_for_the_fence(refuse: str) -> None:
    with ranks(library("cores"), 3, **refusing(refuse)) as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        before = barriers(team)
        assert team.ask(1, do="abort")["result"] == SUCCESS
        assert (barriers(team)[1] > before[1]) == fenced(refuse)


@pytest.mark.parametrize("refuse", ["none", "all", "removals"])
def test_nothing_of_a_destroyed_communicator_is_left_with_threads(refuse: str) -> None:
    """A thread that destroys another thread's communicator issues the fence. Without it, a run fails too rarely."""
    rounds = "200" if refuse == "none" else "50"
    done = run_client([client(HERE / "lookups.c", "cores"), rounds], "nothing left\n", refusing(refuse))
    assert (sum(refusals(done)) > 0) == (refuse == "all" or (refuse == "removals" and fenced(refuse)))
