"""Strangers at every TCP port on which processes of several machines listen, found by the sockets that they hold.

With several rails a machine's first process listens as long as its communicator lives; without, nobody does then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.libraries import library, shared_library
from support.ports import ports_in_the_end, ports_of
from support.ranks import SUCCESS, Ranks
from support.siege import besieged
from support.ucx import with_cards

from collc.network.ucx import find_ucx

HERE = Path(__file__).parent
CALLS = HERE.parent / "netlab" / "calls.py"
EACH = 125
# 80 bytes are a hello of an engine; this one has its form and no proof.
WRONG_SECRET = b"collcwr3" + b"\1" + bytes(15) + b"\1" + bytes(7) + b"\5" * 48
WORDS = {"silent": b"", "half": b"collcwr3", "garbage": b"\xff" * 4096, "wrong": WRONG_SECRET}


@contextlib.contextmanager
def strangers(port: int) -> Iterator[list[socket.socket]]:
    """500 connections that are open, EACH of every kind; those that were shown the door already count too."""
    with contextlib.ExitStack() as stack:
        made = []
        for words in WORDS.values():
            for _ in range(EACH):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
                with contextlib.suppress(ConnectionError):
                    one.sendall(words)
                made.append(one)
        yield made


@pytest.fixture
def team(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Two machines of two ranks, joined by as many streams as the parameter says."""
    settings = {"COLLC_SOCKET_IFNAME": "lo", "COLLC_NET": "tcp:lo", "COLLC_NET_STREAMS": request.param}
    made = Ranks(library("2+2"), 4, {**settings, "COLLC_TIMEOUT": "60"}, CALLS, hosts="aabb")
    try:
        assert [answer["result"] for answer in made.init()] == [SUCCESS] * 4
        yield made
    finally:
        made.close()


def right_calls(team: Ranks, first: int) -> None:
    answers = team.all(None, do="calls", seed="1", parts=None, first=first, last=first + 20)
    assert [answer["wrong"] for answer in answers] == [[]] * 4
    assert {answer["calls"] for answer in answers} == {20}


@pytest.mark.parametrize("team", ["2"], indirect=True)
def test_strangers_at_the_ports_of_rails_change_nothing(team: Ranks) -> None:
    """A connection of each kind more than seats: 500 at every port, while calls go on, and after."""
    ports = ports_in_the_end(team, [1, 0, 1, 0])
    before = [answer["descriptors"] for answer in team.all(do="open")]
    with contextlib.ExitStack() as stack:
        right_calls(team, 0)
        for port in (*ports[0], *ports[2]):
            stack.enter_context(strangers(port))
            right_calls(team, 20)
        held = [answer["descriptors"] for answer in team.all(do="open")]
        assert all(now - then <= 2 * 128 for now, then in zip(held, before, strict=True)), (before, held)
    right_calls(team, 40)
    assert [ports_of(process.pid) for process in team.processes] == ports


@pytest.mark.parametrize("team", ["1"], indirect=True)
def test_without_rails_nobody_listens_after_creation(team: Ranks) -> None:
    right_calls(team, 0)
    ports_in_the_end(team, [0] * 4)


@pytest.mark.parametrize("engine", ["tcp", "ucx"])
def test_strangers_at_every_port_of_a_creation_change_nothing(engine: str) -> None:
    """Machine `b` stops where it calls machine `a`: the listeners of the id and of both machines are open then.

    500 come to each as soon as it opens, and stay. UCX has no port of its own here, as with RDMA.
    """
    if engine == "ucx" and find_ucx(os.environ) is None:
        pytest.skip("no UCX here (Debian: libucx0)")
    settings = {"COLLC_SOCKET_IFNAME": "lo", "COLLC_NET": f"{engine}:lo", "COLLC_TIMEOUT": "60"}
    settings |= with_cards() if engine == "ucx" else {}
    preload = str(shared_library(HERE / "hold_up.c"))
    own = {2: {"LD_PRELOAD": preload, "HOLD_UP": "call:stop"}}
    team = Ranks(library("2+2"), 4, {**settings, "COLLC_BOOTSTRAP_TIMEOUT": "120"}, CALLS, hosts="aabb", own=own)
    try:
        team.all(do="count")
        with besieged([process.pid for process in team.processes], WRONG_SECRET) as siege:
            unique = team.ask(0, do="id")["id"]
            for rank in range(4):
                team.tell(rank, do="init", nranks=4, id=unique, rank=rank)
            siege.wait_for([2, 0, 1, 0])
            team.signal(2, signal.SIGCONT)
            assert [team.hear(rank)["result"] for rank in range(4)] == [SUCCESS] * 4
            right_calls(team, 0)
            ports_in_the_end(team, [0] * 4)
            right_calls(team, 20)
            assert [len(ports) for ports in siege.met.values()] == [2, 0, 1, 0]
        right_calls(team, 40)
    finally:
        team.close()
