"""Communicators over servers that shaped links join: bytes and rates on the links, cables out, silent drops.

The short form runs where namespaces are allowed; `make netlab` runs the long one too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.libraries import client, library, run_client
from support.netlab import Lab, NoLab, lab
from support.ranks import REMOTE_ERROR, SUCCESS, Ranks

RUNTIME = Path(__file__).parent.parent / "runtime"
CALLS = Path(__file__).with_name("calls.py")
FLOATS = 1 << 18  # 1 MiB
REST_OF_FAULTS = [("cable", "a"), ("cable", "b"), ("drop", "a")]
# The least share of the buffer that each of S servers must send.
LEAST: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda s: 2 * (s - 1) / s,
    "all_gather": lambda s: (s - 1) / s,
    "reduce_scatter": lambda s: (s - 1) / s,
    "broadcast": lambda s: 1,
    "reduce": lambda s: 1,
}


@pytest.fixture
def two() -> Iterator[Lab]:
    yield from _lab("ab")


def _lab(servers: str) -> Iterator[Lab]:
    try:
        with lab(servers) as made:
            yield made
    except NoLab as error:
        pytest.skip(f"no network namespaces here: {error}")


def team_in(made: Lab, hosts: str, name: str, **environment: str) -> Ranks:
    team = Ranks(library(name), len(hosts), {"COLLC_SOCKET_IFNAME": "e0", **environment}, hosts=hosts, lab=made.name)
    if any(answer["result"] != SUCCESS for answer in team.init()):
        team.close()
        raise AssertionError("no communicator")
    return team


def bytes_over_least(made: Lab, team: Ranks, collective: str, floats: int, times: int) -> tuple[float, float]:
    """Bytes over the busiest server's link beside the least that the collective needs, and the share of the rate."""
    nranks = len(team.processes)
    count = floats // nranks if collective in ("all_gather", "reduce_scatter") else floats
    least = LEAST[collective](len(made.servers)) * 4 * floats
    before = made.sent()
    seconds = (
        max(a["seconds"] for a in team.all(do="call", collective=collective, count=count, times=times, together=True))
        / times
    )
    after = made.sent()
    busiest = max(after[server] - before[server] for server in made.servers) / times
    return busiest / least, least / made.bytes_per_second / seconds


def test_links_carry_little_more_than_they_must(two: Lab) -> None:
    """1 MiB of every collective: at most 1.10 of the least, the headers of packets (5.4%) included."""
    team = team_in(two, "aabb", "2+2")
    try:
        for collective in LEAST:
            ratio, _ = bytes_over_least(two, team, collective, FLOATS, 1)
            assert 1 < ratio < 1.10, f"{collective}: {ratio:.3f} times the least"
    finally:
        team.close()


@pytest.mark.skipif(os.environ.get("COLLC_NET", "").startswith("ucx"), reason="UCX has connections of its own")
@pytest.mark.parametrize(("name", "hosts"), [("1+1+6", "abcccccc"), ("2+2", "aabb")])
def test_connections_that_share_a_link_are_not_left_to_bbr(name: str, hosts: str) -> None:
    """It holds each of them up for 200 ms of ten seconds; the one between two servers stays as the system has it."""
    servers = "".join(sorted(set(hosts)))
    for made in _lab(servers):
        for server in servers:
            choose = ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=bbr"]
            chosen = subprocess.run([*made.inside(server), *choose], capture_output=True, check=False)
            if chosen.returncode != 0:
                pytest.skip("this kernel has no BBR")
        team = team_in(made, hosts, name)
        try:
            wanted = [{"cubic"}, {"reno"}] if len(servers) > 2 else [{"bbr"}]
            deadline = time.monotonic() + 30
            # The connections with the id's listener go a second after the creation.
            while len(controls := controls_on(made, "a")) != len(servers) - 1:
                assert time.monotonic() < deadline, controls
                time.sleep(0.1)
            assert set(controls) in wanted
            assert [answer["result"] for answer in team.all(do="call", count=1000)] == [SUCCESS] * len(hosts)
        finally:
            team.close()


def controls_on(made: Lab, server: str) -> list[str]:
    """The congestion control of each TCP connection of a server with others."""
    command = [*made.inside(server), "ss", "-tinH", "state", "established", "src", made.address(server)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in found.splitlines() if line.startswith("\t")]


@pytest.mark.parametrize(
    ("how", "server"), [("drop", "b"), *(pytest.param(*one, marks=pytest.mark.slow) for one in REST_OF_FAULTS)]
)
def test_a_server_out_of_reach_is_named_in_time(two: Lab, how: str, server: str) -> None:
    team = team_in(two, "aabb", "2+2", COLLC_NET_TIMEOUT="2")
    try:
        for rank in range(4):
            team.tell(rank, do="call", count=1 << 22)
        time.sleep(0.3)
        cut = time.monotonic()
        if how == "cable":
            two.cable(server, "down")
        else:
            two.drop(server)
        for rank in range(4):
            answer = team.hear(rank)
            assert answer["result"] == REMOTE_ERROR
            assert ("ranks 2, 3" if rank < 2 else "ranks 0, 1") in answer["text"]
            assert "10.79.0." in answer["text"]
        assert time.monotonic() - cut < 20  # not the 60 s of the default
    finally:
        team.close()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["a", "b"])
@pytest.mark.parametrize("how", ["cable", "drop", "kill"])
def test_creation_ends_with_the_ranks_that_do_not_come(two: Lab, how: str, server: str) -> None:
    """A server out of reach, or a process that dies, before its ranks have joined; with the cable back it works.

    The id is made on server `a`, whose own ranks join in any case; so one that dies there has not made it.
    """
    settings = {"COLLC_SOCKET_IFNAME": "e0", "COLLC_BOOTSTRAP_TIMEOUT": "4"}
    team = Ranks(library("2+2"), 4, settings, hosts="aabb", lab=two.name)
    try:
        unique = team.ask(0, do="id")["id"]
        if how == "cable":
            two.cable(server, "down")
        elif how == "drop":
            two.drop(server)
        victim = 1 if server == "a" else 3
        there = [rank for rank in range(4) if how != "kill" or rank != victim]
        for rank in there:
            team.tell(rank, do="init", nranks=4, id=unique, rank=rank)
        if how == "kill":
            team.signal(victim, signal.SIGKILL)
        answers = {rank: team.hear(rank) for rank in there}
        assert SUCCESS not in [answer["result"] for answer in answers.values()]
        missing = f"1 of 4 ranks did not join within 4 s: {victim}" if how == "kill" else "2 of 4 ranks did not join"
        near = [answers[rank]["text"] for rank in (0, 1) if rank in answers]
        assert all(missing in text for text in near), answers
        # The error lists the ranks that did join, by machine. The first ranks share the machine with the id's listener.
        assert all(("(0)" if how == "kill" and server == "a" else "(0, 1)") in text for text in near), answers
        joined = {"a": "10.79.0.2 (2, 3)", "b": "10.79.0.2 (2)"}[server]
        assert all((joined in text) == (how == "kill") for text in near), answers
        if how == "cable":
            two.cable(server, "up")
            assert [answer["result"] for answer in team.init()] == [SUCCESS] * 4
            assert [answer["result"] for answer in team.all(do="call", count=FLOATS)] == [SUCCESS] * 4
    finally:
        team.close()


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(4))
def test_a_killed_process_is_named_with_its_server_and_nothing_is_left(two: Lab, victim: int) -> None:
    team = Ranks(library("2+2"), 4, {"COLLC_SOCKET_IFNAME": "e0"}, hosts="aabb", lab=two.name)
    others = [rank for rank in range(4) if rank != victim]
    try:
        before = team.all(others, do="count")
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 4
        for rank in range(4):
            team.tell(rank, do="call", count=FLOATS, times=1000)
        time.sleep(0.3)
        killed = time.monotonic()
        team.signal(victim, signal.SIGKILL)
        for answer in [team.hear(rank, timeout=30) for rank in others]:
            assert answer["result"] == REMOTE_ERROR
            assert f"rank {victim} on node-{'aabb'[victim]}" in answer["text"], answer
        assert time.monotonic() - killed < 20  # a third of the time limit
        assert [answer["result"] for answer in team.all(others, do="destroy")] == [SUCCESS] * 3
        deadline = time.monotonic() + 60
        while not all(
            now["descriptors"] <= then["descriptors"] and now["threads"] <= then["threads"]
            for now, then in zip(team.all(others, do="count"), before, strict=True)
        ):
            assert time.monotonic() < deadline, (before, team.all(others, do="count"))
            time.sleep(0.1)
    finally:
        team.close()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", range(4))
@pytest.mark.parametrize("when", ["creation", "calls"])
def test_ten_seconds_of_a_stopped_process_are_no_failure(two: Lab, when: str, stopped: int) -> None:
    """The communicator is made, and every element of its calls is right."""
    settings = {"COLLC_SOCKET_IFNAME": "e0", "COLLC_TIMEOUT": "60"}
    team = Ranks(library("2+2"), 4, settings, CALLS, hosts="aabb", lab=two.name)

    def interrupt() -> None:
        time.sleep(0.05)
        team.signal(stopped, signal.SIGSTOP)
        time.sleep(10)
        team.signal(stopped, signal.SIGCONT)

    try:
        unique = team.ask(0, do="id")["id"]
        for rank in range(4):
            team.tell(rank, do="init", nranks=4, id=unique, rank=rank)
        if when == "creation":
            interrupt()
        made = [team.hear(rank) for rank in range(4)]
        assert [answer["result"] for answer in made] == [SUCCESS] * 4, made
        for rank in range(4):
            team.tell(rank, do="calls", seed="1", parts=None, first=0, last=300)
        if when == "calls":
            interrupt()
        answers = [team.hear(rank) for rank in range(4)]
        assert [(answer["wrong"], answer["calls"]) for answer in answers] == [([], 300)] * 4
    finally:
        team.close()


@pytest.mark.slow
def test_splits_and_shrinks(two: Lab) -> None:
    """Parts across the servers, and inside each; three of four ranks after one has gone."""
    program = client(RUNTIME / "parts.c", "2+2:0-3/0,2/1,3/0-2/0-1/2-3")
    settings = {"COLLC_SOCKET_IFNAME": "e0", "RANK_HOSTS": "aabb", "RANK_LAB": two.name}
    run_client([program, "processes", "4"], settings=settings, timeout=600)


@pytest.mark.slow
def test_a_flap_is_no_failure(two: Lab) -> None:
    """The cable is out for two seconds in the middle of a call."""
    team = team_in(two, "aabb", "2+2")
    try:
        for rank in range(4):
            team.tell(rank, do="call", count=FLOATS, times=4)
        time.sleep(0.1)
        two.cable("b", "down")
        time.sleep(2)
        two.cable("b", "up")
        assert [team.hear(rank)["result"] for rank in range(4)] == [SUCCESS] * 4
    finally:
        team.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hosts"), [("2+2", "aabb"), ("3+5", "aaabbbbb"), ("1+1+6", "abcccccc"), ("2+2+2+2", "aabbccdd")]
)
def test_every_call_is_right(name: str, hosts: str) -> None:
    """More than 2,000 calls of each shape: collectives, types, operations, roots, in place; groups and transfers."""
    for made in _lab("".join(sorted(set(hosts)))):
        settings = {"COLLC_SOCKET_IFNAME": "e0", "RANK_HOSTS": hosts, "RANK_LAB": made.name}
        for source in ("client.c", "api.c"):
            command: list[str | Path] = [client(RUNTIME / source, name), "processes", str(len(hosts))]
            run_client(command, settings=settings, timeout=3000)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hosts"), [("2+2", "aabb"), ("2+2+2+2", "aabbccdd")])
def test_bytes_and_rates(name: str, hosts: str) -> None:
    """From 1 MiB to 16 MiB; the rates are printed, for they depend on how busy the machine is."""
    for made in _lab("".join(sorted(set(hosts)))):
        team = team_in(made, hosts, name)
        try:
            for collective in LEAST:
                for floats in (FLOATS, 16 * FLOATS):
                    ratio, rate = bytes_over_least(made, team, collective, floats, 2)
                    print(f"{name} {collective} {4 * floats} bytes: {ratio:.3f} of the least, {rate:.1%} of the rate")
                    assert ratio < 1.10, f"{collective}: {ratio:.3f} times the least"
        finally:
            team.close()
