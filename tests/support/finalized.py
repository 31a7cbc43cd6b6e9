"""Checks of ncclCommFinalize at a rank that waits for nobody in its calls, by a team of three ranks."""

from __future__ import annotations

import time
from typing import Any

from support.ranks import INVALID_USAGE, REMOTE_ERROR, SUCCESS, Ranks

# The root of a broadcast this small has ended its call before any rank has received.
BROADCAST: dict[str, Any] = {"do": "call", "collective": "broadcast", "count": 8, "seconds": 0}
OTHERS = [1, 2]


def begin_to_finalize(team: Ranks) -> None:
    """Rank 0 would return in this time if it did not wait for the others."""
    team.tell(0, do="finalize")
    time.sleep(0.3)


def are_apart(team: Ranks) -> bool:
    """Returns True if the ranks are on several machines: then they hear of each other's calls later."""
    return len(set(team.hosts)) > 1


def wait_for_error(team: Ranks, rank: int) -> None:
    """Waits until the rank has heard that the communicator is broken, because calls differ."""
    deadline = time.monotonic() + 60
    while (found := team.ask(rank, do="error")["result"]) != INVALID_USAGE:
        assert time.monotonic() < deadline, found


def all_finalize_after_equal_calls(team: Ranks) -> None:
    answers = team.all(**BROADCAST)
    assert [answer["result"] for answer in answers] == [SUCCESS] * 3, answers
    # One after the other: none needs another rank to be finalized.
    assert [team.ask(rank, do="finalize")["result"] for rank in range(3)] == [SUCCESS] * 3
    assert [team.ask(rank, do="error")["result"] for rank in range(3)] == [SUCCESS] * 3


def the_root_waits_for_ranks_that_come_late(team: Ranks) -> None:
    assert team.ask(0, **BROADCAST)["result"] == SUCCESS
    begin_to_finalize(team)
    assert [answer["result"] for answer in team.all(OTHERS, **BROADCAST)] == [SUCCESS] * 2
    assert team.hear(0)["result"] == SUCCESS
    assert [team.ask(rank, do="finalize")["result"] for rank in OTHERS] == [SUCCESS] * 2


def the_root_learns_that_the_others_call_something_else(team: Ranks) -> None:
    """Which they do when the root has made all its calls, and only the end is left for it."""
    assert team.ask(0, **BROADCAST)["result"] == SUCCESS
    begin_to_finalize(team)
    for rank in OTHERS:
        team.tell(rank, **{**BROADCAST, "collective": "all_gather", "seconds": 20})
    for answer in [team.hear(0), *map(team.hear, OTHERS)]:
        assert answer["result"] == INVALID_USAGE, answer
        assert all(word in answer["text"] for word in ("calls differ", "broadcast", "all_gather")), answer
    assert [team.ask(rank, do="error")["result"] for rank in range(3)] == [INVALID_USAGE] * 3


def the_root_learns_that_another_rank_makes_fewer_calls(team: Ranks) -> None:
    answers = team.all(**BROADCAST)
    assert [answer["result"] for answer in answers] == [SUCCESS] * 3, answers
    assert team.ask(0, **BROADCAST)["result"] == SUCCESS
    team.tell(0, do="finalize")
    answers = [team.ask(1, do="finalize"), team.hear(0)]
    if are_apart(team) and answers[0]["result"] == SUCCESS:
        del answers[0]  # rank 1 was finalized before it heard of rank 0's call
    for one in answers:
        assert one["result"] == INVALID_USAGE, one
        assert "calls differ: rank 0 has made call" in one["text"], one
        assert "rank 1 was finalized after call" in one["text"], one
    for rank in OTHERS:
        wait_for_error(team, rank)
    assert team.ask(2, **BROADCAST)["result"] == INVALID_USAGE


def a_rank_that_still_needs_a_finalized_one_learns_of_it(team: Ranks) -> None:
    """Rank 1 is finalized after as many calls as the others, and does not leave."""
    answers = team.all(**BROADCAST)
    assert [answer["result"] for answer in answers] == [SUCCESS] * 3, answers
    assert team.ask(1, do="finalize")["result"] == SUCCESS
    answer = team.ask(0, **{**BROADCAST, "collective": "all_gather", "seconds": 20})
    assert answer["result"] == INVALID_USAGE, answer
    assert "calls differ: rank 0 has made call" in answer["text"], answer
    assert "rank 1 was finalized after call" in answer["text"], answer


def the_root_learns_that_another_rank_has_left(team: Ranks) -> None:
    assert team.ask(0, **BROADCAST)["result"] == SUCCESS
    team.tell(0, do="finalize")
    assert team.ask(1, do="destroy")["result"] == SUCCESS
    answer = team.hear(0)
    assert answer["result"] == REMOTE_ERROR, answer
    assert "rank 1 has destroyed its communicator before call" in answer["text"], answer


def check_all(team: Ranks) -> None:
    """Runs every check with a new communicator."""
    for check in (
        all_finalize_after_equal_calls,
        the_root_waits_for_ranks_that_come_late,
        the_root_learns_that_the_others_call_something_else,
        the_root_learns_that_another_rank_makes_fewer_calls,
        a_rank_that_still_needs_a_finalized_one_learns_of_it,
        the_root_learns_that_another_rank_has_left,
    ):
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        check(team)
        team.all(do="destroy")


def the_time_limit_names_the_ranks_that_have_not_come(team: Ranks) -> None:
    """Needs a COLLC_TIMEOUT of half a second."""
    assert team.ask(0, **BROADCAST)["result"] == SUCCESS
    answer = team.ask(0, do="finalize")
    assert answer["result"] == REMOTE_ERROR, answer
    assert "COLLC_TIMEOUT: after 0.5 s of ncclCommFinalize; ranks 1, 2 have not made call" in answer["text"], answer
