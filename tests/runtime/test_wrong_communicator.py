"""A rank that issues a call on the wrong one of two communicators: the messages of the others name it.

In a tree most ranks wait for a rank that waits for another one, so the rank that a message names first may be innocent.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.libraries import client, library
from support.ranks import INVALID_USAGE, REMOTE_ERROR, SUCCESS, Ranks

HERE = Path(__file__).parent
NRANKS = 3
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
ELSEWHERE = "; in another communicator "


def create(team: Ranks, which: str) -> None:
    unique = team.ask(0, do="id")["id"]
    for rank in range(NRANKS):
        team.tell(rank, do="init", which=which, nranks=NRANKS, id=unique, rank=rank)
    assert [team.hear(rank)["result"] for rank in range(NRANKS)] == [SUCCESS] * NRANKS


@contextmanager
def two_communicators(machine: str, own: Mapping[int, Mapping[str, str]] | None = None) -> Iterator[Ranks]:
    """Yields ranks that have the communicators "right" and "wrong"; the time limit is 0.5 s unless `own` sets one."""
    team = Ranks(library(machine), NRANKS, {"COLLC_TIMEOUT": "0.5"}, HERE / "two_comms.py", own=own)
    try:
        for which in ("right", "wrong"):
            create(team, which)
        yield team
    finally:
        team.close()


def missing(text: str, call: int = 1) -> set[int]:
    """Returns the ranks that have not made call number `call`, as a message says."""
    found = re.search(rf"COLLC_TIMEOUT: .*; ranks? ([\d, ]+) ha(?:s|ve) not made call {call}$", text)
    assert found, text
    return {int(rank) for rank in found[1].split(", ")}


@pytest.mark.parametrize("machine", ["odd", "cores"])
def test_the_others_name_it(machine: str) -> None:
    with two_communicators(machine) as team:
        for at, collective in enumerate(COLLECTIVES * NRANKS):
            odd = at % NRANKS
            for rank in range(NRANKS):
                team.tell(rank, do="call", which="wrong" if rank == odd else "right", collective=collective)
            answers = [team.hear(rank) for rank in range(NRANKS)]
            assert [answer["result"] for answer in answers] == [REMOTE_ERROR] * NRANKS, answers
            others = set(range(NRANKS)) - {odd}
            assert missing(answers[odd]["text"]) == others, answers
            assert all(odd in missing(answers[rank]["text"]) for rank in others), answers
            for which in ("right", "wrong"):
                team.all(do="destroy", which=which)
                create(team, which)


def test_a_rank_that_is_held_up_by_it_is_not_named() -> None:
    """Rank 2, the root, is a call ahead of rank 1, which waits in its first call for rank 0, which made none."""
    limits = {rank: {"COLLC_TIMEOUT": limit} for rank, limit in enumerate(("60", "60", "2"))}
    with two_communicators("odd", limits) as team:
        team.tell(1, do="call", which="right", collective="broadcast", root=2)
        assert team.ask(2, do="call", which="right", collective="broadcast", root=2)["result"] == SUCCESS
        answer = team.ask(2, do="call", which="right", collective="all_reduce")
        assert missing(answer["text"]) == {0}
        assert missing(team.hear(1)["text"]) == {0}


@pytest.mark.parametrize("end", ["destroy", "finalize", "dies"])
def test_a_rank_that_left_because_of_it_is_named_with_the_cause(end: str) -> None:
    """Ranks 0 and 1 learn of their mistake on one communicator, and leave another one where rank 2 needs them."""
    with two_communicators("odd", {2: {"COLLC_TIMEOUT": "0"}}) as team:
        for rank, collective in enumerate(("all_reduce", "all_gather")):
            team.tell(rank, do="call", which="wrong", collective=collective)
        answers = [team.hear(rank) for rank in (0, 1)]
        assert [answer["result"] for answer in answers] == [INVALID_USAGE] * 2, answers
        if end == "finalize":  # the root of a small broadcast waits for nobody
            assert team.ask(2, do="call", which="right", collective="broadcast", root=2)["result"] == SUCCESS
            answer = team.ask(0, do="finalize", which="right")
        else:
            if end == "dies":
                team.processes[0].kill()
            else:
                team.tell(0, do="destroy", which="right")
            answer = team.ask(2, do="call", which="right", collective="all_reduce")
        assert answer["result"] == (INVALID_USAGE if end == "finalize" else REMOTE_ERROR), answer
        here, _, elsewhere = answer["text"].partition(ELSEWHERE)
        assert "rank 0 " + {"destroy": "has destroyed", "finalize": "was finalized", "dies": "has died"}[end] in here
        assert elsewhere.startswith("calls differ: call 1 of rank "), answer
        assert "of rank 1 is all_gather" in elsewhere, answer


def named(text: str) -> set[int]:
    """Returns the ranks that a message calls missing, or whose calls it says differ; all ranks for other messages."""
    here, _, elsewhere = text.partition(ELSEWHERE)
    text = elsewhere or here
    if "calls differ" in text:
        return {int(rank) for rank in re.findall(r"rank (\d+) (?:is|has|was) ", text)}
    if found := re.search(r"; ranks? ([\d, ]+) ha(?:s|ve) not made call", text):
        return {int(rank) for rank in found[1].split(", ")}
    return set(range(NRANKS))


@pytest.mark.parametrize("first", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 300, 10))])
@pytest.mark.parametrize("ways", ["processes", "threads"])
def test_seeds(ways: str, first: int) -> None:
    """Nobody hangs or crashes, and each message of another rank that can name the odd one does."""
    command = [str(client(HERE / "crossed_calls.c", "odd")), ways, str(NRANKS), str(first), str(first + 10)]
    settings = {**os.environ, "COLLC_TIMEOUT": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    for line in done.stdout.splitlines():
        _, odd, rank, text = line.split("\t")
        assert rank == odd or int(odd) in named(text), line
