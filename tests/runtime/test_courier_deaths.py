"""The process with a machine's proxy ends: every waiting rank of every machine gets an error in time that names it.

Rank 0 has the proxy of machine `a`, rank 2 the proxy of `b`. A rank that waits only for a rank of another machine
learns of the end of its machine's proxy through shared memory. The other machine sees the closed connection.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.libraries import library
from support.ranks import REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, Ranks

SECONDS = 20.0  # the limit for the report to all ranks on a busy machine: a third of the time limit


@contextmanager
def machines(hosts: str, name: str = "2+2", **environment: str) -> Iterator[Ranks]:
    team = Ranks(library(name), len(hosts), {"COLLC_SOCKET_IFNAME": "lo", **environment}, hosts=hosts)
    try:
        yield team
    finally:
        team.close()


def leave(team: Ranks, rank: int, how: str) -> None:
    """The process of a rank ends: killed, or after its communicator was destroyed and all have heard of that."""
    if how == "destroyed":
        assert team.ask(rank, do="destroy")["result"] == SUCCESS
        time.sleep(2)  # it takes a message
    team.signal(rank, signal.SIGKILL)


def told_in_time(team: Ranks, ranks: list[int], victim: int, since: float) -> list[str]:
    texts = []
    for rank in ranks:
        answer = team.hear(rank)
        assert answer["result"] == REMOTE_ERROR, answer
        assert f"rank {victim}" in answer["text"], answer
        texts.append(answer["text"])
    assert time.monotonic() - since < SECONDS
    return texts


@pytest.mark.parametrize("how", ["killed", pytest.param("destroyed", marks=pytest.mark.slow)])
@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_transfer_between_others_learns_of_it(victim: int, how: str) -> None:
    """Ranks 1 and 3 wait only for each other, and not for the process that ends."""
    with machines("aabb") as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 4
        for rank, peer in ((1, 3), (3, 1)):
            team.tell(rank, do="call", collective="recv", root=peer, count=1000)
        time.sleep(0.2)
        since = time.monotonic()
        leave(team, victim, how)
        texts = told_in_time(team, [1, 3], victim, since)
        assert all(("died" if how == "killed" else "ended") in text for text in texts), texts


DELAYS = [0.0, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2]


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(4))
def test_killed_during_creation(victim: int) -> None:
    """At ten moments: the others get an error that names the rank, or a communicator whose first call does.

    A rank that dies before it has joined is missing: it is named when the time for that is up, and all have left then.
    """
    patience = 3
    for delay in DELAYS:
        with machines("aabb", COLLC_BOOTSTRAP_TIMEOUT=str(patience)) as team:
            team.all(do="count")  # all have come up
            unique = team.ask(0 if victim else 1, do="id")["id"]
            for rank in range(4):
                team.tell(rank, do="init", nranks=4, id=unique, rank=rank)
            time.sleep(delay)
            since = time.monotonic()
            team.signal(victim, signal.SIGKILL)
            others = [rank for rank in range(4) if rank != victim]
            made = {rank: team.hear(rank) for rank in others}
            for rank in [rank for rank in others if made[rank]["result"] == SUCCESS]:
                team.tell(rank, do="call", count=1000)
                made[rank] = team.hear(rank)
            assert time.monotonic() - since < patience + SECONDS, made
            for answer in made.values():
                assert answer["result"] in (REMOTE_ERROR, SYSTEM_ERROR), answer
                missing = f"1 of 4 ranks did not join within {patience} s: {victim}" in answer["text"]
                assert missing or f"rank {victim}" in answer["text"], answer


@pytest.mark.parametrize("victim", [2, *(pytest.param(rank, marks=pytest.mark.slow) for rank in (0, 1, 3))])
def test_stopped_during_creation_and_continued_is_no_failure(victim: int) -> None:
    """At moments of a creation, for a second: all ranks wait, and then have a communicator."""
    for delay in DELAYS[1::3]:
        with machines("aabb") as team:
            team.all(do="count")  # all have come up
            unique = team.ask(0, do="id")["id"]
            for rank in range(4):
                team.tell(rank, do="init", nranks=4, id=unique, rank=rank)
            time.sleep(delay)
            team.signal(victim, signal.SIGSTOP)
            time.sleep(1)
            team.signal(victim, signal.SIGCONT)
            made = [team.hear(rank) for rank in range(4)]
            assert [answer["result"] for answer in made] == [SUCCESS] * 4, made
            assert [answer["result"] for answer in team.all(do="call", count=1000)] == [SUCCESS] * 4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hosts"), [("2+2", "aabb"), ("3+5", "aaabbbbb"), ("1+1+6", "abcccccc")])
def test_each_process_of_each_machine_killed_during_calls(name: str, hosts: str) -> None:
    """During all_reduces of 8 MiB, and during broadcasts from the last rank, at three moments each."""
    size = len(hosts)
    for victim in range(size):
        for collective, delay in (("all_reduce", 0.05), ("all_reduce", 0.3), ("broadcast", 0.15)):
            with machines(hosts, name) as team:
                assert [answer["result"] for answer in team.init()] == [SUCCESS] * size
                for rank in range(size):
                    team.tell(rank, do="call", collective=collective, root=size - 1, count=1 << 20, times=1000)
                time.sleep(delay)
                since = time.monotonic()
                team.signal(victim, signal.SIGKILL)
                told_in_time(team, [rank for rank in range(size) if rank != victim], victim, since)
