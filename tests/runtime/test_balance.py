"""Weights of classes that change while a job runs: the agreement and the policy by themselves, then whole libraries."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from support.libraries import client, library, runtime_program
from support.ranks import ranks

HERE = Path(__file__).parent
INVALID_USAGE = 5
WARM_UP = 200  # calls, as docs/classes.md says


def said(source: str, parts: frozenset[str], *arguments: str) -> str:
    program = runtime_program(HERE / source, parts)
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_every_order_of_answers_leads_to_one_outcome(nranks: int) -> None:
    """0 to 3 calls made by each rank before; with a no, a death, a rank that will not wait; nobody waits for ever."""
    starts, states, changed, kept = map(int, said("agreement.cpp", frozenset(), "orders", str(nranks)).split())
    assert min(starts, changed, kept) > 100
    assert states > 5000


@pytest.mark.parametrize("nranks", [2, 4])
def test_threads_use_the_same_in_the_same_call(nranks: int) -> None:
    calls, changes = map(int, said("agreement.cpp", frozenset(), "threads", str(nranks)).split())
    assert changes > calls // 1000


@pytest.mark.parametrize("what", ["converge", "alone", "drop"])
def test_the_policy_on_simulated_machines(what: str) -> None:
    parts = frozenset({"plan_balance", "plan_weights", "base_environment", "base_status"})
    assert said("balance_policy.cpp", parts, what, "200") == "200 machines\n"


def run(
    collective: str, calls: int, throttle: str, elements: int = 1 << 18, ways: str = "threads", **settings: str
) -> tuple[list[float], list[str], list[str]]:
    """Microseconds and bits of each call, and what rank 0 says of weights. Four ranks, three classes."""
    command = [str(client(HERE / "balance.c", "joint")), ways, "4", collective, str(elements), str(calls)]
    env = {**os.environ, "COLLC_DIRECT": "0", "COLLC_DEBUG": "INFO", "COLLC_THROTTLE": throttle, **settings}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=env)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == calls
    moves = [line for line in done.stderr.splitlines() if "bytes on:" in line]
    return [float(line[0]) for line in lines], [line[1] for line in lines], moves


# The first two speeds make classes change places behind the warm-up.
CHANGING = f"nvlink:900,pcie:300,net:150,nvlink:100@{WARM_UP + 20},pcie:900@{WARM_UP + 20}"


@pytest.mark.parametrize("ways", ["threads", "processes"])
def test_sums_keep_their_bits_after_the_warm_up(ways: str) -> None:
    _, bits, moves = run("allreduce", WARM_UP + 60, CHANGING, ways=ways)
    assert len(set(bits)) > 1
    assert len(set(bits[WARM_UP:])) == 1
    calls = [int(found[1]) for line in moves if (found := re.search(r"from call (\d+) on", line))]
    assert calls
    assert max(calls) <= WARM_UP + 1


def test_sums_may_change_their_bits_where_the_user_says_so() -> None:
    _, bits, _ = run("allreduce", WARM_UP + 60, CHANGING, COLLC_BALANCE="always")
    assert len(set(bits[WARM_UP:])) > 1


def test_nothing_moves_where_the_user_says_so() -> None:
    _, bits, moves = run("allreduce", 40, CHANGING, COLLC_BALANCE="0")
    assert len(set(bits)) == 1
    assert moves == []


def test_copies_move_at_any_time_and_stay_right() -> None:
    _, bits, moves = run("allgather", WARM_UP + 60, CHANGING, ways="processes")
    assert len(set(bits)) == 1
    calls = [int(found[1]) for line in moves if (found := re.search(r"from call (\d+) on", line))]
    assert max(calls) > WARM_UP + 20


def test_one_thread_with_all_ranks_does_not_wait_for_itself() -> None:
    """Groups of one thread; the program checks every element."""
    env = {**os.environ, "COLLC_BALANCE": "always", "COLLC_THROTTLE": "nvlink:2000,pcie:1000"}
    command = [str(client(HERE / "group_balance.c", "joint")), "4"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=env | {"COLLC_DEBUG": "INFO"}
    )
    assert done.returncode == 0, done.stderr
    assert "bytes on:" in done.stderr


@pytest.mark.parametrize("value", ["2", "yes", "Always", "-1"])
def test_a_mistyped_balance_is_heard_of(value: str) -> None:
    command = [str(client(HERE / "bits.c", "joint")), "threads", "4"]
    env = {**os.environ, "COLLC_BALANCE": value}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    assert f"COLLC_BALANCE={value} is none of 0, 1 and always" in done.stderr


@pytest.mark.parametrize("value", ["nvlink", "nvlink:0", "rail:3", "nvlink:3@x", "pcie:3,nvlink:"])
def test_a_mistyped_throttle_is_heard_of(value: str) -> None:
    command = [str(client(HERE / "bits.c", "joint")), "threads", "4"]
    env = {**os.environ, "COLLC_THROTTLE": value}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    assert "is not MB/s as in nvlink:12.5,pcie:6,nvlink:3@20" in done.stderr


def test_ranks_that_balance_differently_are_told_so() -> None:
    with ranks(library("joint"), 4) as team:
        unique = team.ask(0, do="id")["id"]
        for rank in range(4):
            team.ask(rank, do="environment", name="COLLC_BALANCE", value="always" if rank < 3 else "0")
        for rank in range(4):
            team.tell(rank, do="init", nranks=4, id=unique, rank=rank)
        answers = [team.hear(rank) for rank in range(4)]
    assert {answer["result"] for answer in answers} == {INVALID_USAGE}
    wanted = "ranks 0 and 3 disagree: COLLC_BALANCE=always on the one, COLLC_BALANCE=0 on the other"
    assert all(wanted in answer["text"] for answer in answers)
