"""`culprits` names the right ranks for every kind of fault, and no others."""

from __future__ import annotations

import dataclasses

import pytest

from collc.status.culprits import culprits
from collc.status.model import (
    ALIVE,
    COMPLETED,
    DIED,
    ELSEWHERE,
    LEFT,
    SCHEDULED,
    STARTED,
    STOPPED,
    Call,
    Communicator,
    Rank,
)


def call(
    number: int, state: str = COMPLETED, age: float | None = 5.0, text: str = "all_reduce", history: str = ""
) -> Call:
    return Call(number, "all_reduce", text, False, history or f"h{number}", state, age)


def rank(number: int, newest: int, state: str = ALIVE, last: str = COMPLETED, age: float | None = 5.0) -> Rank:
    """One that has made `newest` calls; the last is in this state."""
    calls = [call(n) for n in range(1, newest)] + ([call(newest, last, age)] if newest else [])
    return Rank(number, state, 100 + number, newest=newest, calls=tuple(calls))


def blamed(*ranks: Rank, patience: float = 1.0) -> list[int]:
    whole = Communicator("c", len(ranks), "x.so", "", "", ranks)
    return [finding.rank for finding in culprits(whole, patience)]


def blamed_after(*ranks: Rank, broken_by: int | None = None) -> list[int]:
    """Of a communicator that has failed."""
    whole = Communicator("c", len(ranks), "x.so", "", "rank 0: failed", ranks, broken_by)
    return [finding.rank for finding in culprits(whole)]


WAITS = rank(0, 3, last=STARTED), rank(1, 3, last=STARTED)


def test_a_sound_job_has_none() -> None:
    assert blamed(rank(0, 3), rank(1, 3)) == []
    assert blamed(rank(0, 0), rank(1, 0)) == []
    # A little apart, as ranks that run always are.
    assert blamed(rank(0, 3, last=STARTED, age=0.5), rank(1, 2)) == []
    assert blamed(rank(0, 3, last=STARTED, age=None), rank(1, 2)) == []
    # Everybody is in the same call.
    assert blamed(*WAITS) == []


@pytest.mark.parametrize("state", [DIED, STOPPED])
def test_one_that_is_gone_is_named_wherever_it_was(state: str) -> None:
    for newest in (0, 2, 3):
        assert blamed(*WAITS, rank(2, newest, state)) == [2]


def test_one_that_left_early_is_named_and_one_that_left_in_the_end_is_not() -> None:
    assert blamed(*WAITS, rank(2, 2, LEFT)) == [2]
    assert blamed(rank(0, 3), rank(1, 3), rank(2, 3, LEFT)) == []


def test_one_that_is_late_is_named_once_others_have_waited() -> None:
    assert blamed(*WAITS, rank(2, 2)) == [2]
    assert blamed(*WAITS, rank(2, 0)) == [2]
    assert blamed(*WAITS, rank(2, 2), patience=6.0) == []
    assert blamed(rank(0, 3, last=STARTED, age=None), rank(1, 2), patience=0.0) == [1]
    assert blamed(rank(0, 3, last=SCHEDULED), rank(1, 2)) == [1]
    assert blamed(rank(0, 3), rank(1, 2)) == []  # nobody waits


def test_the_latest_comes_first_after_those_that_are_gone() -> None:
    assert blamed(*WAITS, rank(2, 2), rank(3, 1), rank(4, 2, STOPPED)) == [4, 3, 2]


def test_the_odd_call_is_named_whoever_made_it() -> None:
    usual = [rank(n, 3, last=STARTED) for n in range(4)]
    for odd in range(4):
        other = call(3, STARTED, text="broadcast", history="x")
        ranks = list(usual)
        ranks[odd] = dataclasses.replace(usual[odd], calls=(*usual[odd].calls[:2], other))
        assert blamed(*ranks) == [odd]


def test_without_a_majority_all_ranks_whose_calls_differ_are_named() -> None:
    """Rank 1 has not come to the call, so one call stands against the other."""
    odd = dataclasses.replace(rank(2, 3), calls=(call(1), call(2), call(3, STARTED, text="reduce", history="x")))
    whole = Communicator("c", 3, "x.so", "", "rank 0: failed", (rank(0, 3), rank(1, 2), odd), 0)
    assert [(finding.rank, finding.what) for finding in culprits(whole)] == [
        (0, "call 3 is all_reduce; rank 2's is reduce"),
        (2, "call 3 is reduce; rank 0's is all_reduce"),
    ]


def test_the_first_difference_counts_and_not_what_follows_from_it() -> None:
    early = Rank(1, ALIVE, 1, newest=3, calls=(call(1), call(2, text="reduce", history="x"), call(3, history="y")))
    whole = Communicator("c", 3, "x.so", "", "", (rank(0, 3), early, rank(2, 3)))
    (finding,) = culprits(whole)
    assert finding.what == "call 2 is reduce; the others' is all_reduce"


def test_ranks_of_which_nothing_is_known_are_not_blamed_for_being_late() -> None:
    assert blamed(*WAITS, Rank(2, ELSEWHERE)) == []


def test_who_had_no_time_for_the_newest_call_is_not_to_blame_where_another_has_failed() -> None:
    """It may have failed before it noted its call, since the communicator was broken by then."""
    late = rank(3, 2)
    assert blamed_after(*WAITS, rank(2, 3), late) == [3]  # after the time limit
    assert blamed_after(*WAITS, rank(2, 3, DIED), late) == [2]
    assert blamed_after(*WAITS, rank(2, 3), late, broken_by=2) == [2]
    assert blamed_after(*WAITS, rank(2, 2, LEFT), late) == [2]
    # In a job that runs, both keep the others waiting.
    assert blamed(*WAITS, rank(2, 2, STOPPED), late) == [2, 3]
