"""Weights of classes that change while a job runs: the agreement and the policy by themselves, then whole libraries."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.libraries import client, library, run_client, runtime_program
from support.ranks import INVALID_USAGE, REMOTE_ERROR, SUCCESS, Ranks, ranks

HERE = Path(__file__).parent
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


@pytest.mark.parametrize("kilobytes", [(), (64000, 32000), (64000, 48000, 32000)], ids=["one size", "two", "three"])
@pytest.mark.parametrize("what", ["converge", "alone", "drop"])
def test_the_policy_on_simulated_machines(what: str, kilobytes: tuple[int, ...]) -> None:
    """A job whose calls are of several sizes in turn, too, as with buckets of gradients."""
    parts = frozenset({"plan_balance", "plan_weights", "base_environment", "base_status"})
    assert said("balance_policy.cpp", parts, what, "400", *map(str, kilobytes)) == "400 machines\n"


@pytest.mark.slow
def test_balancing_costs_little_where_nothing_moves() -> None:
    """Measures a rank's part of a call, without cache lines that cross cores."""
    control = {"control_balancer", "control_segment", "control_liveness", "control_call_log"}
    base = {"base_environment", "base_status", "base_log", "base_machine", "base_descriptor"}
    parts = frozenset(control | base | {"plan_balance", "plan_weights"})
    assert 0 < float(said("balance_cost.cpp", parts, "4", "20000")) < 1000  # nanoseconds


BALANCED = {"COLLC_BALANCE": "1", "COLLC_DEBUG": "INFO"}


def run(
    collective: str, calls: int, throttle: str, elements: int = 1 << 18, ways: str = "threads", **settings: str
) -> tuple[list[float], list[str], list[str]]:
    """Returns microseconds and bits of each call, and rank 0's lines about weights. Four ranks, three classes."""
    command = [str(client(HERE / "balance.c", "joint")), ways, "4", collective, str(elements), str(calls)]
    env = {**os.environ, "COLLC_DIRECT": "0", **BALANCED, "COLLC_THROTTLE": throttle, **settings}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=env)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == calls
    moves = [line for line in done.stderr.splitlines() if "bytes on:" in line]
    return [float(line[0]) for line in lines], [line[1] for line in lines], moves


# Numbers of calls to try until weights move: ranks that lose their cores take as long over one class as over another.
ATTEMPTS = (40, 200, 1000)
# The first two speeds make classes change places behind the warm-up.
CHANGING = f"nvlink:900,pcie:300,net:150,nvlink:100@{WARM_UP + 20},pcie:900@{WARM_UP + 20}"


@pytest.mark.parametrize("ways", ["threads", "processes"])
def test_sums_keep_their_bits_after_the_warm_up(ways: str) -> None:
    for _ in ATTEMPTS:
        _, bits, moves = run("allreduce", WARM_UP + 60, CHANGING, ways=ways)
        assert len(set(bits[WARM_UP:])) == 1
        calls = [int(found[1]) for line in moves if (found := re.search(r"from call (\d+) on", line))]
        assert max(calls, default=0) <= WARM_UP + 1
        if calls and len(set(bits)) > 1:
            return
    raise AssertionError(f"no weights moved before call {WARM_UP}")


def test_sums_may_change_their_bits_where_the_user_says_so() -> None:
    assert any(
        len(set(run("allreduce", WARM_UP + 20 + more, CHANGING, COLLC_BALANCE="always")[1][WARM_UP:])) > 1
        for more in ATTEMPTS
    )


def test_nothing_moves_where_the_user_says_so() -> None:
    _, bits, moves = run("allreduce", 40, CHANGING, COLLC_BALANCE="0")
    assert len(set(bits)) == 1
    assert moves == []


@pytest.mark.parametrize("value", ["1", ""])
def test_weights_are_balanced_by_default(value: str) -> None:
    """An empty variable counts as none."""
    assert any(run("allreduce", calls, CHANGING, COLLC_BALANCE=value)[2] for calls in ATTEMPTS)


def test_copies_move_at_any_time_and_stay_right() -> None:
    calls: list[int] = []
    for more in ATTEMPTS:
        _, bits, moves = run("allgather", WARM_UP + 20 + more, CHANGING, ways="processes")
        assert len(set(bits)) == 1
        calls = [int(found[1]) for line in moves if (found := re.search(r"from call (\d+) on", line))]
        if max(calls, default=0) > WARM_UP + 20:
            return
    raise AssertionError(calls)


def test_one_thread_with_all_ranks_does_not_wait_for_itself() -> None:
    """Groups of one thread; the program checks every element."""
    env = {**os.environ, "COLLC_BALANCE": "always", "COLLC_THROTTLE": "nvlink:2000,pcie:1000"}
    command = [str(client(HERE / "group_balance.c", "joint")), "4"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=env | {"COLLC_DEBUG": "INFO"}
    )
    assert done.returncode == 0, done.stderr
    assert "bytes on:" in done.stderr


@contextmanager
def agreeing(others: tuple[int, ...] = (1, 2), aborts: float | None = None) -> Iterator[Ranks]:
    """Rank 0 has proposed other weights and waits for rank 3, which does not come to its next call.

    `others` begin that call too; rank 0 aborts it after `aborts` seconds.
    """
    call: dict[str, Any] = {"do": "call", "collective": "all_gather", "count": 1 << 18}
    throttle = "net:3"
    with ranks(library("joint"), 4, COLLC_DIRECT="0", COLLC_THROTTLE=throttle, **BALANCED) as team:
        assert {answer["result"] for answer in team.init()} == {SUCCESS}
        for _ in range(2):
            assert {answer["result"] for answer in team.all(**call)} == {SUCCESS}
        # The others are in the third call when rank 0 comes and proposes.
        for rank in (1, 2, 3):
            team.tell(rank, **call)
        time.sleep(0.3)
        team.tell(0, **call)
        assert {team.hear(rank)["result"] for rank in range(4)} == {SUCCESS}
        team.tell(0, **call, **({"aborts": aborts} if aborts else {}))
        for rank in others:
            team.tell(rank, **call)
        time.sleep(0.2)
        yield team


KEEPS = "all_gather keeps the weights of its classes: "


@pytest.mark.parametrize("goes", ["dies", "leaves"])
def test_who_goes_while_the_others_agree_ends_their_wait(goes: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Rank 0 proposes by times that it has measured: on a busy machine they may tell nothing, or all takes too long."""
    why = "rank 3 has died" if goes == "dies" else "rank 3 has destroyed its communicator"
    for _ in range(6):
        with agreeing(others=()) as team:  # which would see it too, and might tell rank 0
            if goes == "dies":
                team.signal(3, signal.SIGKILL)
            else:
                assert team.ask(3, do="destroy")["result"] == SUCCESS
            answer = team.hear(0)
        assert answer["result"] == REMOTE_ERROR
        assert why in answer["text"]
        # Within less than the limit of a wait.
        if KEEPS + why in capfd.readouterr().err and answer["seconds"] < 0.9:
            return
    raise AssertionError("rank 0 never told at once why the weights stay")


@pytest.mark.parametrize("by", [0, 3], ids=["who waits", "who does not come"])
def test_an_abort_ends_the_wait(by: int, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(6):
        with agreeing(aborts=0.3 if by == 0 else None) as team:
            if by == 3:
                team.tell(3, do="abort")
            answers = [team.hear(rank) for rank in range(3)]
        assert 0 not in {answer["result"] for answer in answers}
        err = capfd.readouterr().err
        # Before the limit of a wait, unless the machine is busy.
        if max(answer["seconds"] for answer in answers) < 0.9:
            assert KEEPS not in err
            return
    raise AssertionError("an abort ended no wait at once")


def test_a_late_rank_keeps_the_weights_and_ends_the_wait(capfd: pytest.CaptureFixture[str]) -> None:
    for seconds in (1.3, 1.3, 3, 3, 3, 3):  # as above: on a busy machine there may be no proposal, or it comes late
        with agreeing() as team:
            time.sleep(seconds)
            team.tell(3, do="call", collective="all_gather", count=1 << 18)
            assert {team.hear(rank)["result"] for rank in range(4)} == {SUCCESS}
        words = re.escape(KEEPS) + r"ranks? ([\d, ]+) ha(?:s|ve) not come within a second"
        if "3" in ", ".join(re.findall(words, capfd.readouterr().err)).split(", "):  # others may be late, too
            return
    raise AssertionError("rank 0 never told that rank 3 is late")


@pytest.mark.parametrize("value", ["2", "yes", "Always", "-1", "random", "random:", "random:x", "random:1x"])
def test_a_mistyped_balance_is_heard_of(value: str) -> None:
    command = [str(client(HERE / "bits.c", "joint")), "threads", "4"]
    env = {**os.environ, "COLLC_BALANCE": value}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    assert f"COLLC_BALANCE={value} is none of 0, 1, always and random:SEED" in done.stderr


@pytest.mark.parametrize(
    "ways", ["thread", *(pytest.param(w, marks=pytest.mark.slow) for w in ("processes", "threads"))]
)
def test_calls_are_right_while_ranks_agree_on_random_weights(ways: str) -> None:
    """Every collective and type; changes are proposed all the time, whatever was measured."""
    settings = {"COLLC_BALANCE": "random:1", "COLLC_DIRECT": "0", "COLLC_DEBUG": "INFO"}
    done = run_client([client(HERE / "client.c", "joint"), ways, "4"], settings=settings)
    assert int(done.stdout.split()[0]) > 1_000_000
    assert done.stderr.count("bytes on:") > 100


def test_a_class_that_stops_in_a_call_is_named() -> None:
    """A thousandth of a byte per second: what is given to PCIe does not arrive."""
    command = [str(client(HERE / "balance.c", "joint")), "processes", "4", "allgather", str(1 << 18), "10"]
    settings = {"COLLC_DIRECT": "0", "COLLC_THROTTLE": "pcie:0.000000001@5", "COLLC_TIMEOUT": "2"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=150, check=False, env={**os.environ, **settings}
    )
    assert done.returncode != 0
    assert len(done.stdout.splitlines()) <= 4
    assert re.search(
        r"COLLC_TIMEOUT: after [2-9]\.. s rank \d waits for rank \d in all_gather over pcie", done.stderr
    ), done.stderr


def test_a_class_that_all_but_stops_is_left_out_and_the_job_goes_on() -> None:
    """In one of several runs: on a busy machine the other calls take long too."""
    for _ in ATTEMPTS:
        times, _, moves = run("allgather", 40, "nvlink:200,pcie:100,net:50,pcie:0.8@15", ways="processes")
        is_left_out = any("pcie" not in line.split(" from call ")[0] for line in moves)
        if is_left_out and sorted(times[-10:])[5] < 0.25 * max(times[15:25]):
            return
    raise AssertionError((times, moves))


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
