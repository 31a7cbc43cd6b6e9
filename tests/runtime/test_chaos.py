"""Random faults at random moments: each ends in success or its true cause on every survivor; nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.crowd import crowd
from support.libraries import library
from support.ranks import INVALID_USAGE, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, Ranks, ranks

NRANKS = 3
DEADLINE = 100.0
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
CALLS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "alltoall", "gather", "scatter")

Call = dict[str, object]


def random_call(rng: random.Random) -> Call:
    call: Call = {
        "collective": rng.choice(CALLS),
        "count": rng.choice([0, 1, 1000, 300_000]),
        "type": rng.choice([7, 8]),
    }
    if call["collective"] in REDUCING:
        call["op"] = rng.choice([0, 2])
    if call["collective"] in ROOTED:
        call["root"] = rng.randrange(NRANKS)
    return call


@dataclass
class Chaos:
    """One run: a team of ranks. One of them, the victim, suffers a fault."""

    team: Ranks
    rng: random.Random
    victim: int
    fault: str
    during_creation: bool
    dead: bool = field(default=False, init=False)

    @property
    def left(self) -> list[int]:
        return [rank for rank in range(NRANKS) if not (self.dead and rank == self.victim)]

    def strike(self) -> None:
        """Does to the victim what may come at any moment."""
        if self.fault == "dies":
            self.team.signal(self.victim, signal.SIGKILL)
            self.dead = True
        if self.fault == "stops":
            self.team.signal(self.victim, signal.SIGSTOP)
            time.sleep(self.rng.choice([0.1, 1.5]))  # shorter and longer than COLLC_TIMEOUT
            self.team.signal(self.victim, signal.SIGCONT)

    def create(self) -> bool:
        """True if there is a communicator."""
        unique = bytes.fromhex(self.team.ask(0, do="id")["id"])
        how = self.rng.choice(["silent", "slow", "garbage", "wrong", "passing", "mixed"])
        besieged = self.rng.random() < 0.3
        with crowd(unique.hex(), how, self.rng.choice([0, 5000])) if besieged else contextlib.nullcontext():
            return self.meet(unique)

    def meet(self, unique: bytes) -> bool:
        if self.fault == "limited":
            self.limit()
        for rank in range(NRANKS):
            self.team.tell(rank, do="init", nranks=NRANKS, id=unique.hex(), rank=rank)
        if self.during_creation:
            time.sleep(self.rng.uniform(0, 0.05))
            self.strike()
        answers = {rank: self.team.hear(rank, DEADLINE) for rank in self.left}
        for rank, answer in answers.items():
            assert answer["result"] in (SUCCESS, SYSTEM_ERROR, REMOTE_ERROR), answers
            if answer["result"] == SUCCESS:
                continue
            if self.fault == "limited" and rank == self.victim:
                assert "File too large" in answer["text"], answers
            elif self.victim == 0 and "the process that made the id" in answer["text"]:
                continue
            else:
                assert f"rank {self.victim}" in answer["text"] or f": {self.victim}" in answer["text"], answers
        made = all(answer["result"] == SUCCESS for answer in answers.values())
        assert made or self.fault in ("limited", "dies", "stops"), answers
        return made and not self.dead

    def limit(self) -> None:
        """Rank 0 makes the shared memory, which counts as a file."""
        self.victim = 0
        self.team.ask(0, do="limit", of="FSIZE", to=self.rng.choice([0, 1 << 16, 1 << 30]))

    def take_up_habits(self) -> None:
        """Actions of a process that must not disturb its rank."""
        for habit in self.rng.sample(["fork", "close", "execute", "thread"], self.rng.randrange(1, 4)):
            assert self.team.ask(self.victim, do=habit)["result"] == SUCCESS

    def run(self) -> None:
        if not self.create():
            return
        if self.fault == "has habits" or self.rng.random() < 0.3:
            self.take_up_habits()
        usual, times = random_call(self.rng), self.rng.choice([1, 50])
        odd = usual
        while self.fault == "differs" and odd == usual:
            odd = {**usual, "count": 77} if self.rng.random() < 0.3 else random_call(self.rng)
        for rank in range(NRANKS):
            self.team.tell(rank, do="call", times=times, **(odd if rank == self.victim else usual))
        if not self.during_creation:
            time.sleep(self.rng.uniform(0, 0.2))
            self.strike()
        answers = {rank: self.team.hear(rank, DEADLINE) for rank in self.left}
        self.judge(answers, usual, odd)
        for rank in self.left:
            assert self.team.ask(rank, do="destroy")["result"] == SUCCESS

    def judge(self, answers: dict[int, Call], usual: Call, odd: Call) -> None:
        """Every rank that could not go on says why, and so does its next call."""
        if self.fault == "differs":
            assert {answer["result"] for answer in answers.values()} <= {SUCCESS, INVALID_USAGE}, answers
            for rank in self.left:
                self.team.tell(rank, do="call")
            answers = {rank: self.team.hear(rank, DEADLINE) for rank in self.left}
            assert {answer["result"] for answer in answers.values()} == {INVALID_USAGE}, (usual, odd, answers)
            for answer in answers.values():
                words = str(answer["text"])
                assert all(w in words for w in ("calls differ", str(usual["collective"]), str(odd["collective"]))), (
                    words
                )
            assert {self.team.ask(rank, do="error")["result"] for rank in self.left} == {INVALID_USAGE}
        elif self.fault == "dies" and self.dead:
            for rank in self.left:
                self.team.tell(rank, do="call")  # who needed the dead one no more learns of it now
            for rank, answer in {rank: self.team.hear(rank, DEADLINE) for rank in self.left}.items():
                assert answer["result"] == REMOTE_ERROR, (answers[rank], answer)
                assert f"rank {self.victim} has died" in str(answer["text"]), (answers[rank], answer)
        elif self.fault == "stops":
            failed = [answer for answer in answers.values() if answer["result"] != SUCCESS]
            assert all(answer["result"] == REMOTE_ERROR and "COLLC_TIMEOUT" in str(answer["text"]) for answer in failed)
        else:
            assert {answer["result"] for answer in answers.values()} == {SUCCESS}, answers


FAULTS = ("nothing", "dies", "dies", "stops", "differs", "differs", "has habits", "limited")


def run_one(seed: int) -> None:
    rng = random.Random(seed)
    fault = rng.choice(FAULTS)
    during_creation = fault in ("dies", "stops") and rng.random() < 0.25
    limits = {"COLLC_BOOTSTRAP_TIMEOUT": "2" if during_creation or fault == "limited" else "90"}
    if fault == "stops":
        limits["COLLC_TIMEOUT"] = "1"
    limits["COLLC_SOCKET_IFNAME"] = "lo"  # strangers come there too
    with ranks(library(rng.choice(["odd", "cores"])), NRANKS, **limits) as team:
        Chaos(team, rng, rng.randrange(NRANKS), fault, during_creation).run()


def leftovers() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "collc" in name} if Path("/dev/shm").is_dir() else set()


@pytest.mark.parametrize("seed", range(12))
def test_a_fault(seed: int) -> None:
    before = leftovers()
    run_one(seed)
    assert leftovers() == before


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_three_hundred_faults(seed: int) -> None:
    test_a_fault(seed)


@pytest.mark.slow
def test_ten_thousand_communicators_leak_nothing() -> None:
    with ranks(library("pair"), 2) as team:
        opened: list[dict[str, object]] = []
        for turn in range(10_000):
            assert {answer["result"] for answer in team.init()} == {SUCCESS}
            assert {answer["result"] for answer in team.all(do="destroy")} == {SUCCESS}
            if turn in (10, 9_999):
                time.sleep(3)  # the listener ends when it has had nothing to do for a while
                opened.append(team.ask(0, do="open"))
        assert opened[0] == opened[1]
