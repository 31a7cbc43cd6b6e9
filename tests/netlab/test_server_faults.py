"""Faults of each server in turn, on more shapes than 2 + 2: kills, stops, cables, silent drops, in creation and calls.

Errors name the right ranks in time, and nothing is left behind. `make netlab` runs the tests over both engines;
COLLC_NET names the engine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.leavings import holdings, lab_is_gone, nothing_more_in_the_end, servers_are_empty
from support.libraries import library
from support.netlab import Lab, NoLab, lab
from support.ranks import REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, Ranks

CALLS = Path(__file__).with_name("calls.py")
SHAPES = {"2+2+2+2": "aabbccdd", "3+5": "aaabbbbb", "1+1+6": "abcccccc"}
EACH = [(name, server) for name, hosts in SHAPES.items() for server in sorted(set(hosts))]
MOMENTS = [0.0, 0.02, 0.05, 0.1, 0.2]  # of a creation
NAMED_WITHIN = 5.0  # seconds after the death of a process
JOINING = 4  # COLLC_BOOTSTRAP_TIMEOUT of creations that fail
SILENCE = 2  # COLLC_NET_TIMEOUT
SLACK = 20.0  # seconds that a busy machine may take beside
# For each other server: UCX's TCP waits in connect() until the system gives up; RDMA has no such call.
CONNECT = 90.0 if os.environ.get("COLLC_NET", "").startswith("ucx") else 0.0


@contextmanager
def servers_of(name: str, **environment: str) -> Iterator[tuple[Lab, Ranks]]:
    """A lab with a process for each rank; afterwards its servers are empty, and then it is gone."""
    hosts = SHAPES[name]
    try:
        with lab("".join(sorted(set(hosts)))) as made:
            settings = {"COLLC_SOCKET_IFNAME": "e0", "COLLC_TIMEOUT": "60", **environment}
            team = Ranks(library(name), len(hosts), settings, CALLS, hosts=hosts, lab=made.name)
            try:
                team.all(do="count")  # all have come up
                yield made, team
            finally:
                team.close()
            servers_are_empty(made)
    except NoLab as error:
        pytest.skip(f"no network namespaces here: {error}")
    lab_is_gone(made)


def ranks_on(name: str, server: str) -> list[int]:
    return [rank for rank, host in enumerate(SHAPES[name]) if host == server]


def elsewhere(name: str, server: str) -> list[int]:
    return [rank for rank, host in enumerate(SHAPES[name]) if host != server]


def begin_creation(team: Ranks, maker: int) -> None:
    unique = team.ask(maker, do="id")["id"]
    for rank in range(len(team.processes)):
        team.tell(rank, do="init", nranks=len(team.processes), id=unique, rank=rank)


def outcomes(team: Ranks, ranks: list[int]) -> dict[int, str]:
    """Returns the error of each rank: of the creation, or of the first call if the creation succeeded."""
    answers = {rank: team.hear(rank) for rank in ranks}
    made = [rank for rank in ranks if answers[rank]["result"] == SUCCESS]
    for rank in made:
        team.tell(rank, do="call", count=1 << 20, times=20)
    for rank in made:
        answers[rank] = team.hear(rank)
    assert {answer["result"] for answer in answers.values()} <= {REMOTE_ERROR, SYSTEM_ERROR}, answers
    return {rank: answer["text"] for rank, answer in answers.items()}


def right_calls(team: Ranks, last: int) -> None:
    answers = team.all(None, do="calls", seed="1", parts=None, first=0, last=last)
    assert [(answer["wrong"], answer["calls"]) for answer in answers] == [([], last)] * len(team.processes)


@pytest.mark.parametrize(
    ("name", "server"), [("1+1+6", "b"), *(pytest.param(*one, marks=pytest.mark.slow) for one in EACH if one[1] != "b")]
)
def test_a_killed_process_of_each_server_is_named_and_nothing_is_left(name: str, server: str) -> None:
    """The process that joins the server with others, and the last one of it."""
    for victim in dict.fromkeys([ranks_on(name, server)[0], ranks_on(name, server)[-1]]):
        with servers_of(name) as (_, team):
            others = [rank for rank in range(len(SHAPES[name])) if rank != victim]
            before = holdings(team, others)
            assert [answer["result"] for answer in team.init()] == [SUCCESS] * len(SHAPES[name])
            for rank in range(len(SHAPES[name])):
                team.tell(rank, do="call", count=1 << 18, times=1000)
            time.sleep(0.3)
            killed = time.monotonic()
            team.signal(victim, signal.SIGKILL)
            for rank in others:
                answer = team.hear(rank, timeout=30)
                assert answer["result"] == REMOTE_ERROR, answer
                assert f"rank {victim} on node-{server}" in answer["text"], answer
            assert time.monotonic() - killed < NAMED_WITHIN
            assert [answer["result"] for answer in team.all(others, do="destroy")] == [SUCCESS] * len(others)
            nothing_more_in_the_end(team, others, before)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "server"), EACH)
def test_a_process_killed_amid_creation_is_named(name: str, server: str) -> None:
    """One that has not joined is missing when the time for that is up."""
    victim = ranks_on(name, server)[0]
    others = [rank for rank in range(len(SHAPES[name])) if rank != victim]
    for moment in MOMENTS:
        with servers_of(name, COLLC_BOOTSTRAP_TIMEOUT=str(JOINING)) as (_, team):
            begin_creation(team, others[0])
            time.sleep(moment)
            killed = time.monotonic()
            team.signal(victim, signal.SIGKILL)
            texts = outcomes(team, others)
            assert time.monotonic() - killed < JOINING + NAMED_WITHIN, texts
            missing = f"1 of {len(SHAPES[name])} ranks did not join within {JOINING} s: {victim}"
            assert all(missing in text or f"rank {victim}" in text for text in texts.values()), (moment, texts)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cable", "drop"])
@pytest.mark.parametrize(("name", "server"), EACH)
def test_a_server_out_of_reach_amid_calls_is_named(name: str, server: str, how: str) -> None:
    """All other ranks name the server's ranks, its address and the limit. Its ranks name another server's ranks."""
    with servers_of(name, COLLC_NET_TIMEOUT=str(SILENCE)) as (made, team):
        everyone = list(range(len(SHAPES[name])))
        before = holdings(team, everyone)
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * len(everyone)
        for rank in everyone:
            team.tell(rank, do="call", count=1 << 18, times=1000)
        time.sleep(0.3)
        cut = time.monotonic()
        cut_off(made, server, how)
        answers = {rank: team.hear(rank) for rank in everyone}
        assert time.monotonic() - cut < SILENCE + SLACK
        for rank, answer in answers.items():
            assert answer["result"] == REMOTE_ERROR, answer
            lost = [server] if SHAPES[name][rank] != server else sorted(set(SHAPES[name]) - {server})
            named = [(numbered(ranks_on(name, one)), made.address(one)) for one in lost]
            assert any(ranks in answer["text"] and address in answer["text"] for ranks, address in named), (
                rank,
                answer,
            )
            assert f"for {SILENCE} s (COLLC_NET_TIMEOUT)" in answer["text"], answer
        assert [answer["result"] for answer in team.all(do="destroy")] == [SUCCESS] * len(everyone)
        nothing_more_in_the_end(team, everyone, before)


def cut_off(made: Lab, server: str, how: str, back: bool = False) -> None:
    if how == "cable":
        made.cable(server, "up" if back else "down")
    else:
        made.drop(server, lost=not back)


def numbered(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cable", "drop"])
@pytest.mark.parametrize(("name", "server"), EACH)
def test_a_server_out_of_reach_amid_creation_is_named(name: str, server: str, how: str) -> None:
    """Each rank gets an error in time; ranks elsewhere name the server. After its return, creation succeeds."""
    times = {"COLLC_BOOTSTRAP_TIMEOUT": str(JOINING), "COLLC_NET_TIMEOUT": str(SILENCE)}
    everyone = list(range(len(SHAPES[name])))
    for moment in MOMENTS[::2]:
        with servers_of(name, **times) as (made, team):
            begin_creation(team, 0)
            time.sleep(moment)
            cut = time.monotonic()
            cut_off(made, server, how)
            texts = outcomes(team, everyone)
            connects = CONNECT * (len(set(SHAPES[name])) - 1)
            assert time.monotonic() - cut < 2 * JOINING + SILENCE + SLACK + connects, texts
            own = ranks_on(name, server)
            marks = [made.address(server), f"node-{server}", numbered(own), f": {', '.join(map(str, own))};"]
            told = [texts[rank] for rank in elsewhere(name, server)]
            assert all(any(mark in text for mark in marks) for text in told), (moment, told)
            cut_off(made, server, how, back=True)
            team.all(do="destroy")
            assert [answer["result"] for answer in team.init()] == [SUCCESS] * len(everyone)
            right_calls(team, 20)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["creation", "calls"])
@pytest.mark.parametrize(("name", "server"), EACH)
def test_ten_seconds_of_a_stopped_process_of_each_server_are_no_failure(name: str, server: str, when: str) -> None:
    """The communicator is made, and every element of its calls is right."""
    stopped, everyone = ranks_on(name, server)[0], range(len(SHAPES[name]))
    with servers_of(name) as (_, team):
        begin_creation(team, 0)
        if when == "calls":
            assert [team.hear(rank)["result"] for rank in everyone] == [SUCCESS] * len(everyone)
            for rank in everyone:
                team.tell(rank, do="calls", seed="1", parts=None, first=0, last=200)
        time.sleep(0.05)
        team.signal(stopped, signal.SIGSTOP)
        time.sleep(10)
        team.signal(stopped, signal.SIGCONT)
        answers = [team.hear(rank) for rank in everyone]
        if when == "creation":
            assert [answer["result"] for answer in answers] == [SUCCESS] * len(everyone), answers
            right_calls(team, 100)
            return
        assert [(answer["wrong"], answer["calls"]) for answer in answers] == [([], 200)] * len(everyone)
