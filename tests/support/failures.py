"""Errors of ranks on two servers, two ranks on each, after some ranks have gone. All targets give the same ones."""

from __future__ import annotations

import signal
import time

from support.ranks import REMOTE_ERROR, Ranks


def kill_amid_a_call(team: Ranks, victim: int, count: int, seconds: float | None = None) -> dict[int, str]:
    """Kills a rank amid a call of `count` elements; all others name it, in time. Returns what each of them says."""
    others = [rank for rank in range(len(team.processes)) if rank != victim]
    for rank in others:
        team.tell(rank, do="call", count=count)
    time.sleep(0.3)
    killed = time.monotonic()
    team.signal(victim, signal.SIGKILL)
    said = {}
    for rank in others:
        answer = team.hear(rank)
        assert answer["result"] == REMOTE_ERROR
        assert f"rank {victim}" in answer["text"], answer
        said[rank] = answer["text"]
    assert seconds is None or time.monotonic() - killed < seconds
    return said


def a_killed_rank_is_named(team: Ranks, victim: int, count: int) -> list[int]:
    """The same, and all say that it has died before a third of the time limit has passed. Returns the others."""
    said = kill_amid_a_call(team, victim, count, 20)
    assert all("died" in text for text in said.values())
    return list(said)


def a_silent_server_is_named(team: Ranks, count: int) -> None:
    """Stops both ranks of the second server. Ranks of the first name them, and the variable that limits the wait."""
    for rank in (2, 3):
        team.signal(rank, signal.SIGSTOP)
    for rank in (0, 1):
        team.tell(rank, do="call", count=count)
    for rank in (0, 1):
        answer = team.hear(rank)
        assert answer["result"] == REMOTE_ERROR
        assert "ranks 2, 3" in answer["text"]
        assert "COLLC_NET_TIMEOUT" in answer["text"]
