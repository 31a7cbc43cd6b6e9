"""Errors of the survivors when a rank dies, stops, comes late, leaves, or calls another collective."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from strangers import addresses, connect
from support.joined import wait_for_ranks
from support.libraries import client, library, run_client
from support.ranks import (
    INTERNAL_ERROR,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    REMOTE_ERROR,
    SUCCESS,
    SYSTEM_ERROR,
    Ranks,
    ranks,
)

HERE = Path(__file__).parent


def results(answers: list[dict[str, object]]) -> list[object]:
    return [answer["result"] for answer in answers]


def test_a_killed_rank_is_named_and_the_next_communicator_works() -> None:
    with ranks(library("odd"), 3) as team:
        assert results(team.init()) == [SUCCESS] * 3
        for rank in (0, 2):
            team.tell(rank, do="call", count=100000)
        team.signal(1, signal.SIGKILL)
        for rank in (0, 2):
            answer = team.hear(rank)
            assert answer["result"] == REMOTE_ERROR
            assert "rank 1 has died" in answer["text"]
            assert answer["seconds"] < 20  # not one of the time limits
            assert team.ask(rank, do="error")["result"] == REMOTE_ERROR
            assert team.ask(rank, do="call")["result"] == REMOTE_ERROR  # it stays broken
            assert team.ask(rank, do="destroy")["result"] == SUCCESS
    with ranks(library("odd"), 3) as team:
        assert results(team.init()) == [SUCCESS] * 3
        assert results(team.all(do="call")) == [SUCCESS] * 3


def test_a_late_rank_costs_no_cpu_and_no_error() -> None:
    """In the best of several rounds: on a busy machine each look at the others costs more."""
    spent: list[float] = []
    with ranks(library("dgx1v"), 8) as team:
        assert results(team.init()) == [SUCCESS] * 8
        while len(spent) < 5 and not any(seconds < 0.3 for seconds in spent):
            before = [team.ask(rank, do="cpu")["seconds"] for rank in range(1, 8)]
            for rank in range(1, 8):
                team.tell(rank, do="call")
            time.sleep(1)
            team.tell(0, do="call")
            assert [team.hear(rank)["result"] for rank in range(8)] == [SUCCESS] * 8
            after = [team.ask(rank, do="cpu")["seconds"] for rank in range(1, 8)]
            spent.append(sum(after) - sum(before))  # of seven ranks that wait for a second
    assert min(spent) < 0.3, spent


def test_a_stopped_rank_ends_at_the_time_limit() -> None:
    with ranks(library("odd"), 3, COLLC_TIMEOUT="0.5") as team:
        assert results(team.init()) == [SUCCESS] * 3
        team.signal(2, signal.SIGSTOP)
        for rank in (0, 1):
            team.tell(rank, do="call")
        answers = [team.hear(rank) for rank in (0, 1)]
        assert results(answers) == [REMOTE_ERROR] * 2
        # One runs into the limit and says what it waited for; the other hears of it.
        assert all("COLLC_TIMEOUT" in str(answer["text"]) and "step" in str(answer["text"]) for answer in answers)
        team.signal(2, signal.SIGCONT)
        assert team.ask(2, do="call")["result"] == REMOTE_ERROR


@pytest.mark.parametrize(
    "odd_one",
    [{"collective": "broadcast"}, {"count": 101}, {"type": 8}, {"op": 2}],
    ids=["collective", "count", "type", "operation"],
)
def test_a_rank_that_calls_something_else_is_found(odd_one: dict[str, object]) -> None:
    with ranks(library("odd"), 3) as team:
        assert results(team.init()) == [SUCCESS] * 3
        assert results(team.all(do="call")) == [SUCCESS] * 3
        for rank in (0, 1):
            team.tell(rank, do="call", collective="all_reduce", count=100)
        team.tell(2, do="call", **odd_one)
        answers = [team.hear(rank) for rank in range(3)]
        # A rank that had finished its part may have succeeded; then its next call reports the error.
        assert set(results(answers)) <= {SUCCESS, INVALID_USAGE}
        answers = [team.ask(rank, do="call") for rank in range(3)]
        assert results(answers) == [INVALID_USAGE] * 3
        assert all("calls differ: call 2 of rank" in str(answer["text"]) for answer in answers)
        assert [team.ask(rank, do="error")["result"] for rank in range(3)] == [INVALID_USAGE] * 3


def test_a_rank_that_leaves_early_is_named() -> None:
    with ranks(library("odd"), 3) as team:
        assert results(team.init()) == [SUCCESS] * 3
        assert team.ask(1, do="destroy")["result"] == SUCCESS
        answers = team.all([0, 2], do="call")
        assert results(answers) == [REMOTE_ERROR] * 2
        assert any("rank 1 has destroyed its communicator" in str(answer["text"]) for answer in answers)


@pytest.mark.parametrize("goes", ["destroys", "dies"])
@pytest.mark.parametrize("first", [1, 2])
def test_who_goes_after_its_part_disturbs_nobody(first: int, goes: str) -> None:
    """Rank 0 last looked before that part came, and still waits for the third rank when it learns of the end."""
    with ranks(library("cores"), 3) as team:
        assert results(team.init()) == [SUCCESS] * 3
        team.tell(0, do="call", collective="reduce")
        time.sleep(0.3)  # it sleeps
        team.signal(0, signal.SIGSTOP)
        assert team.ask(first, do="call", collective="reduce")["result"] == SUCCESS
        if goes == "dies":
            team.signal(first, signal.SIGKILL)
            team.processes[first].wait(10)
        else:
            assert team.ask(first, do="destroy")["result"] == SUCCESS
        team.signal(0, signal.SIGCONT)
        time.sleep(0.3)
        others = [0, 3 - first]
        team.tell(others[1], do="call", collective="reduce")
        answers = [team.hear(rank) for rank in others]
        assert results(answers) == [SUCCESS] * 2, answers
        answers = team.all(others, do="call")
        assert results(answers) == [REMOTE_ERROR] * 2
        why = "has died" if goes == "dies" else "has destroyed its communicator"
        assert any(f"rank {first} {why}" in str(answer["text"]) for answer in answers)


@pytest.mark.parametrize(
    ("machine", "nranks", "rounds"),
    [
        ("odd", 3, 60),
        ("dgx1v", 8, 20),
        pytest.param("odd", 3, 200, marks=pytest.mark.slow),
        pytest.param("dgx1v", 8, 80, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("way", [{}, {"COLLC_PROTO": "Simple", "COLLC_DIRECT": "1"}], ids=["as it is", "direct"])
def test_processes_end_when_they_like(machine: str, nranks: int, rounds: int, way: dict[str, str]) -> None:
    run_client([client(HERE / "ends.c", machine), str(nranks), str(rounds), "1"], f"{rounds} rounds right\n", way)


def test_abort_frees_the_others() -> None:
    with ranks(library("odd"), 3) as team:
        assert results(team.init()) == [SUCCESS] * 3
        for rank in (0, 2):
            team.tell(rank, do="call")
        time.sleep(0.2)
        assert team.ask(1, do="abort")["result"] == SUCCESS
        answers = [team.hear(rank) for rank in (0, 2)]
        assert results(answers) == [REMOTE_ERROR] * 2
        assert all("rank 1: ncclCommAbort was called" in str(answer["text"]) for answer in answers)


def test_missing_ranks_are_named() -> None:
    with ranks(library("odd"), 3, COLLC_BOOTSTRAP_TIMEOUT="1") as team:
        unique = team.ask(0, do="id")["id"]
        team.tell(0, do="init", nranks=3, id=unique, rank=0)
        answer = team.hear(0)
        assert answer["result"] == SYSTEM_ERROR
        here = f"those that did are on {socket.gethostname()} (0)"
        assert f"2 of 3 ranks did not join within 1 s: 1, 2; {here}" in answer["text"]


def test_a_rank_that_dies_during_creation() -> None:
    with ranks(library("odd"), 3) as team:
        unique = team.ask(0, do="id")["id"]
        team.ask(1, do="open")  # it has started
        for rank in (0, 1):
            team.tell(rank, do="init", nranks=3, id=unique, rank=rank)
        wait_for_ranks(team, 0, 2)
        team.signal(1, signal.SIGKILL)
        answer = team.hear(0)
        assert answer["result"] == REMOTE_ERROR
        assert "rank 1 left" in answer["text"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"nranks": 2, "rank": 1}, "rank 1 says there are 2 ranks, others say 3"),
        ({"nranks": 3, "rank": 0}, "rank 0 joined twice"),
        ({"nranks": 3, "rank": 3}, "rank 3 is not in 0..2"),
        ({"nranks": 0, "rank": 0}, "0 ranks are not possible"),
    ],
    ids=["another size", "the same rank", "no such rank", "no ranks"],
)
def test_ranks_that_do_not_fit(second: dict[str, int], words: str) -> None:
    with ranks(library("odd"), 3, COLLC_BOOTSTRAP_TIMEOUT="100") as team:
        unique = team.ask(0, do="id")["id"]
        team.ask(1, do="open")  # it has started
        team.tell(0, do="init", nranks=3, id=unique, rank=0)
        wait_for_ranks(team, 0, 1)
        start = time.monotonic()
        answers = [team.ask(1, do="init", id=unique, **second), team.hear(0)]
        answers.append(team.ask(2, do="init", nranks=3, id=unique, rank=2))  # nor can it be made later
        assert {answer["result"] for answer in answers} <= {INVALID_ARGUMENT, INVALID_USAGE}
        assert all(words in str(answer["text"]) for answer in answers), answers
        assert time.monotonic() - start < 50


def test_strangers_at_the_listener_disturb_nobody() -> None:
    with ranks(library("odd"), 3, COLLC_SOCKET_IFNAME="lo") as team:
        unique = bytes.fromhex(team.ask(0, do="id")["id"])
        strangers = [one for address in addresses(unique) * 20 if (one := connect(address))]
        strangers[0].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
        strangers[1].sendall(bytes(1000))
        strangers[2].close()
        wrong = bytearray(unique)
        wrong[40] ^= 1  # a bit of the secret
        team.tell(0, do="init", nranks=3, id=unique.hex(), rank=0)
        refused = team.ask(1, do="init", nranks=3, id=bytes(wrong).hex(), rank=1)
        assert refused["result"] == REMOTE_ERROR
        assert "refused" in refused["text"]
        for rank in (1, 2):
            team.tell(rank, do="init", nranks=3, id=unique.hex(), rank=rank)
        assert [team.hear(rank)["result"] for rank in range(3)] == [SUCCESS] * 3
        assert results(team.all(do="call")) == [SUCCESS] * 3
        for stranger in strangers:
            stranger.close()


def test_an_id_of_another_library_is_refused() -> None:
    with ranks(library("odd"), 1) as team:
        answer = team.ask(0, do="init", nranks=1, id=(b"\x01" * 128).hex(), rank=0)
        assert answer["result"] == INVALID_ARGUMENT
        assert "unique id" in answer["text"]


def test_nonsense_in_the_environment_is_refused() -> None:
    with ranks(library("odd"), 3, COLLC_TIMEOUT="soon") as team:
        answers = team.init()
        assert results(answers) == [INVALID_USAGE] * 3 or INTERNAL_ERROR not in results(answers)
        assert all("COLLC_TIMEOUT=soon is not a number" in str(answer["text"]) for answer in answers)


def settled(team: Ranks) -> dict[str, object]:
    """Returns rank 0's resources after its listener has ended. The thread that shows others that it lives stays."""
    deadline = time.monotonic() + 60
    while (held := team.ask(0, do="open"))["threads"] > 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    return held


def test_many_communicators_leak_nothing() -> None:
    with ranks(library("pair"), 2) as team:
        opened: list[dict[str, object]] = []
        for turn in range(40):
            assert results(team.init()) == [SUCCESS] * 2
            assert results(team.all(do="call")) == [SUCCESS] * 2
            assert results(team.all(do="destroy")) == [SUCCESS] * 2
            if turn in (5, 39):
                opened.append(settled(team))
        assert opened[0] == opened[1]


@pytest.mark.parametrize("ways", ["threads", "processes"])
@pytest.mark.parametrize("machine", ["odd", "cores"])
def test_buffers_may_go_as_soon_as_a_call_has_failed(machine: str, ways: str) -> None:
    program = client(HERE / "abort.c", machine)
    done = subprocess.run([program, ways, "3"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert int(done.stdout.split()[0]) > 0
