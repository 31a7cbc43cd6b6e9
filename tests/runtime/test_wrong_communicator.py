"""A rank that issues a call on the wrong one of two communicators: after the time limit the others name it.

In a tree most ranks wait for a rank that waits for another one, so the rank that a message names first may be innocent.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.libraries import library
from support.ranks import REMOTE_ERROR, SUCCESS, Ranks

HERE = Path(__file__).parent
NRANKS = 3
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")


def create(team: Ranks, which: str) -> None:
    unique = team.ask(0, do="id")["id"]
    for rank in range(NRANKS):
        team.tell(rank, do="init", which=which, nranks=NRANKS, id=unique, rank=rank)
    assert [team.hear(rank)["result"] for rank in range(NRANKS)] == [SUCCESS] * NRANKS


def missing(answer: dict[str, Any]) -> set[int]:
    """The ranks that have not made the call, as a message says."""
    found = re.search(r"COLLC_TIMEOUT: .*; ranks? ([\d, ]+) ha(?:s|ve) not made call 1$", answer["text"])
    assert found, answer
    return {int(rank) for rank in found[1].split(", ")}


@pytest.mark.parametrize("machine", ["odd", "cores"])
def test_the_others_name_it(machine: str) -> None:
    team = Ranks(library(machine), NRANKS, {"COLLC_TIMEOUT": "0.5"}, HERE / "two_comms.py")
    try:
        for at, collective in enumerate(COLLECTIVES * NRANKS):
            odd = at % NRANKS
            for which in ("right", "wrong"):
                create(team, which)
            for rank in range(NRANKS):
                team.tell(rank, do="call", which="wrong" if rank == odd else "right", collective=collective)
            answers = [team.hear(rank) for rank in range(NRANKS)]
            assert [answer["result"] for answer in answers] == [REMOTE_ERROR] * NRANKS, answers
            others = set(range(NRANKS)) - {odd}
            assert missing(answers[odd]) == others, answers
            assert all(odd in missing(answers[rank]) for rank in others), answers
            for which in ("right", "wrong"):
                team.all(do="destroy", which=which)
    finally:
        team.close()
