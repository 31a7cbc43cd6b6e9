"""`collc status` on jobs that run: who is stopped, who is elsewhere, what cannot be read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from support.cli import collc, refused
from support.libraries import library
from support.ranks import Ranks, ranks
from support.running import status, stranger, until


def blamed(found: dict[str, Any]) -> dict[int, str]:
    return {one["rank"]: one["what"] for one in found["culprits"]}


def hung_job(team: Ranks) -> int:
    """Eight ranks: 3 is stopped, 5 is in a receive from it, the others are in their third all_reduce."""
    assert all(answer["result"] == 0 for answer in team.init())
    assert all(answer["result"] == 0 for answer in team.all(do="call", times=2))
    team.signal(3, signal.SIGSTOP)
    team.tell(5, do="call", collective="recv", root=3, count=7)
    for rank in (0, 1, 2, 4, 6, 7):
        team.tell(rank, do="call", collective="all_reduce")
    return team.processes[0].pid


def test_a_hung_job_names_the_stopped_rank_and_the_one_in_another_call() -> None:
    with ranks(library("dgx1v"), 8) as team:
        process = hung_job(team)
        waits: dict[int, set[int]] = {rank: set() for rank in range(8)}

        def is_told(one: dict[str, Any]) -> bool:
            # A rank that looks around just now waits for nobody: what counts is all that each has said so far.
            for row in one["ranks"]:
                waits[row["rank"]].update(row["waits_for"])
            # Its neighbors in the plan wait for rank 3, and so does rank 5; all six are in the call by now.
            all_wait = all(3 in waits[rank] for rank in (0, 1, 2, 5, 7))
            return set(blamed(one)) == {3, 5} and all_wait and "in which 6 ranks wait" in blamed(one)[5]

        found = until(process, is_told)
        what = blamed(found)
        assert "is stopped" in what[3]
        assert f"process {team.processes[3].pid}" in what[3]
        assert "its last call is 2, all_reduce of 100 elements of float32 (sum)" in what[3]
        assert "has not made call 3 (all_reduce of 100 elements of float32 (sum)), in which 6 ranks wait; " in what[5]
        assert "it is in a receive of 7 elements of float32 from rank 3" in what[5]
        assert next(iter(what)) == 3
        rows = {row["rank"]: row for row in found["ranks"]}
        assert rows[3]["state"] == "stopped"
        assert waits[5] == {3}
        assert rows[5]["in"]["call"] == "a receive of 7 elements of float32 from rank 3"
        assert max(rows[rank]["in"]["since_s"] for rank in (0, 1, 2, 4, 6, 7)) >= 1.0
        assert [row["gpu"] for row in found["ranks"]] == [f"gpu{rank}" for rank in range(8)]
        assert [row["process"] for row in found["ranks"]] == [one.pid for one in team.processes]
        assert set(rows[0]["ways"]) == {str(rank) for rank in range(1, 8)}
        assert found["library"] == str(library("dgx1v"))
        assert found["plan"]
        # Looking has changed nothing: the job goes on where it was.
        team.signal(3, signal.SIGCONT)
        assert team.ask(3, do="call", collective="send", root=5, count=7)["result"] == 0
        assert team.hear(5)["result"] == 0
        for rank in (3, 5):
            team.tell(rank, do="call", collective="all_reduce")
        assert all(team.hear(rank)["result"] == 0 for rank in range(8))
        assert blamed(status(process)) == {}


def test_idle_ranks_are_in_no_call_and_nobody_is_blamed() -> None:
    with ranks(library("pair"), 2) as team:
        team.init()
        team.all(do="call", collective="alltoall", count=3)
        team.all(do="call", collective="broadcast", count=5)
        team.all(do="call", count=0)
        found = status(team.processes[1].pid)
        assert found["failure"] is None
        assert blamed(found) == {}
        for row in found["ranks"]:
            assert row["in"] is None
            assert row["newest"] == 3
            assert [(one["number"], one["call"], one["state"]) for one in row["calls"]] == [
                (1, "alltoall of 3 elements of float32", "completed"),
                (2, "broadcast of 5 elements of float32, root 0", "completed"),
                (3, "all_reduce of 0 elements of float32 (sum)", "completed"),
            ]


@pytest.mark.slow
def test_the_ring_keeps_the_last_calls() -> None:
    with ranks(library("pair"), 2) as team:
        team.init()
        team.all(do="call", times=100)
        team.tell(0, do="call", collective="send", root=1, times=20)
        team.tell(1, do="call", collective="recv", root=0, times=20)
        assert [team.hear(rank)["result"] for rank in range(2)] == [0, 0]
        for row in status(team.processes[0].pid)["ranks"]:
            collectives = [one["number"] for one in row["calls"] if not one["is_p2p"]]
            transfers = [one["number"] for one in row["calls"] if one["is_p2p"]]
            assert collectives == [*range(37, 101)]
            assert transfers == [*range(5, 21)]
            assert {one["state"] for one in row["calls"]} == {"completed"}


@pytest.mark.slow
def test_one_process_with_several_communicators_and_all_of_them() -> None:
    with ranks(library("pair"), 2) as team:
        team.init()
        team.all(do="split", color=0)
        process = team.processes[0].pid
        found = json.loads(collc("status", process, "--json").out)["communicators"]
        assert len(found) == 2
        assert len({one["communicator"] for one in found}) == 2
        everything = json.loads(collc("status", "all", "--json").out)["communicators"]
        names = {one["communicator"] for one in everything}
        assert names >= {one["communicator"] for one in found}
        text = collc("status", process, "--calls").out
        assert text.count("communicator ") == 2


def test_a_dead_rank_is_named_while_others_still_have_the_communicator() -> None:
    with ranks(library("pair"), 2) as team:
        team.init()
        team.all(do="call")
        team.signal(1, signal.SIGKILL)
        team.processes[1].wait()
        found = until(team.processes[0].pid, lambda one: 1 in blamed(one))
        assert "has died" in blamed(found)[1]
        assert "its last call is 1, all_reduce" in blamed(found)[1]


def test_a_process_without_a_communicator_and_one_that_is_not_there() -> None:
    with stranger() as process:
        assert json.loads(collc("status", process, "--json").out) == {"communicators": [], "problems": []}
    assert "there is no process 999999999" in refused(collc("status", "999999999"), code=2)
    assert "not the number of a process" in refused(collc("status", "none"), code=2)


def test_memory_with_other_contents_is_refused() -> None:
    """A process may name its memory as ours: each damaged place is refused with a line, never followed."""
    code = """
import mmap, os, struct, sys
fd = os.memfd_create("collc")
os.truncate(fd, 1 << 16)
memory = mmap.mmap(fd, 1 << 16)
memory[:8] = b"cllcseg2"
struct.pack_into("=Q", memory, 32, int(sys.argv[1]))
memory[4096:4104] = b"clcbord1"
struct.pack_into("=30Q", memory, 4104, *[int(sys.argv[2])] * 30)
print("ready", flush=True)
sys.stdin.read()
"""
    for place, word in ((1 << 63, 0), (65530, 0), (4096, 0), (4096, 1), (4096, 1 << 63), (4096, (1 << 64) - 1)):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(place), str(word)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            found = json.loads(collc("status", process.pid, "--json").out)
            assert found["communicators"] == []
            assert len(found["problems"]) == 1
            assert "not what this collc understands" in found["problems"][0]
            process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become another user")
def test_another_users_job_is_not_shown() -> None:
    with ranks(library("pair"), 2) as team:
        team.init()
        process = team.processes[0].pid
        name = status(process)["communicator"]
        os.seteuid(65534)
        try:
            everything, one = collc("status", "all", "--json"), collc("status", process)
        finally:
            os.seteuid(0)
        assert everything.code == 0
        assert name not in everything.out
        assert "belongs to another user" in refused(one)
