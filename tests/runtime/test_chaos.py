"""Random faults at random moments: each ends in success or a named error in time, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.libraries import library
from support.ranks import INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, Ranks, ranks

NRANKS = 3
NAMED = {SUCCESS, SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR}
DEADLINE = 100.0
CALLS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")

Fault = Callable[[Ranks, int, random.Random], None]


def kill(team: Ranks, victim: int, rng: random.Random) -> None:
    team.signal(victim, signal.SIGKILL)


def stop_for_a_while(team: Ranks, victim: int, rng: random.Random) -> None:
    team.signal(victim, signal.SIGSTOP)
    time.sleep(rng.choice([0.1, 1.5]))  # shorter and longer than COLLC_TIMEOUT
    team.signal(victim, signal.SIGCONT)


def nothing(team: Ranks, victim: int, rng: random.Random) -> None:
    """A run without a fault must succeed."""


def run_one(seed: int) -> None:
    rng = random.Random(seed)
    victim = rng.randrange(NRANKS)
    fault: Fault = rng.choice([kill, kill, stop_for_a_while, nothing])
    during_creation = rng.random() < 0.25
    odd_call = rng.random() < 0.25 and fault is nothing
    stranger = rng.random() < 0.3
    limit = {"COLLC_TIMEOUT": "1", "COLLC_BOOTSTRAP_TIMEOUT": "2"}
    with ranks(library(rng.choice(["odd", "cores"])), NRANKS, **limit) as team:
        unique = bytes.fromhex(team.ask(0, do="id")["id"])
        if stranger:
            (port,) = struct.unpack_from("!H", unique, 8)
            with socket.create_connection((socket.inet_ntoa(unique[16:20]), port)) as noise:
                noise.sendall(rng.randbytes(rng.randrange(1, 200)))
        for rank in range(NRANKS):
            team.tell(rank, do="init", nranks=NRANKS, id=unique.hex(), rank=rank)
        if during_creation:
            time.sleep(rng.uniform(0, 0.05))
            fault(team, victim, rng)
        alive = [r for r in range(NRANKS) if not (during_creation and fault is kill and r == victim)]
        made = [team.hear(rank, DEADLINE)["result"] for rank in alive]
        assert set(made) <= NAMED
        if set(made) != {SUCCESS} or len(alive) < NRANKS:
            return
        collective, count = rng.choice(CALLS), rng.choice([1, 1000, 300_000])
        times = rng.choice([1, 50])
        for rank in range(NRANKS):
            wrong = odd_call and rank == victim
            team.tell(rank, do="call", collective=collective, count=count + wrong, times=times)
        if not during_creation:
            time.sleep(rng.uniform(0, 0.2))
            fault(team, victim, rng)
        heard = [r for r in range(NRANKS) if during_creation or fault is not kill or r != victim]
        results = [team.hear(rank, DEADLINE) for rank in heard]
        assert {answer["result"] for answer in results} <= NAMED
        assert all(answer["text"] for answer in results if answer["result"] != SUCCESS)
        if fault is nothing and not odd_call:
            assert {answer["result"] for answer in results} == {SUCCESS}
        for rank in heard:
            assert team.ask(rank, do="destroy")["result"] == SUCCESS
    # The same library serves the next communicator.


def leftovers() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "collc" in name} if Path("/dev/shm").is_dir() else set()


@pytest.mark.parametrize("seed", range(8))
def test_a_fault(seed: int) -> None:
    before = leftovers()
    run_one(seed)
    assert leftovers() == before


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_two_hundred_faults(seed: int) -> None:
    test_a_fault(seed)


@pytest.mark.slow
def test_ten_thousand_communicators_leak_nothing() -> None:
    with ranks(library("pair"), 2) as team:
        opened: list[dict[str, object]] = []
        for turn in range(10_000):
            assert {answer["result"] for answer in team.init()} == {SUCCESS}
            assert {answer["result"] for answer in team.all(do="destroy")} == {SUCCESS}
            if turn in (10, 9_999):
                time.sleep(3)  # the last listeners end in threads of their own
                opened.append(team.ask(0, do="open"))
        assert opened[0] == opened[1]
