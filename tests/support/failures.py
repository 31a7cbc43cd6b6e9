"""What every target's ranks over two servers, two on each, must say when some of them are gone."""

from __future__ import annotations

import signal
import time

from support.ranks import REMOTE_ERROR, Ranks


def a_killed_rank_is_named(team: Ranks, victim: int, count: int) -> list[int]:
    """Kills a rank amid a call of `count` elements; all others name it within 5 s. Returns the others."""
    others = [rank for rank in range(4) if rank != victim]
    for rank in others:
        team.tell(rank, do="call", count=count)
    time.sleep(0.3)
    killed = time.monotonic()
    team.signal(victim, signal.SIGKILL)
    for rank in others:
        answer = team.hear(rank)
        assert answer["result"] == REMOTE_ERROR
        assert f"rank {victim}" in answer["text"]
        assert "died" in answer["text"]
    assert time.monotonic() - killed < 5
    return others


def a_silent_server_is_named(team: Ranks, count: int) -> None:
    """Stops both ranks of the second server; those of the first name them, and the variable that bounds their wait."""
    for rank in (2, 3):
        team.signal(rank, signal.SIGSTOP)
    for rank in (0, 1):
        team.tell(rank, do="call", count=count)
    for rank in (0, 1):
        answer = team.hear(rank)
        assert answer["result"] == REMOTE_ERROR
        assert "ranks 2, 3" in answer["text"]
        assert "COLLC_NET_TIMEOUT" in answer["text"]
