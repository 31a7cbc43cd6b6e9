"""The host target with each way of moving chunks forced: every element of every call, and faults.

COLLC_DIRECT=0 sends every chunk through a slot; COLLC_PROTO chooses the protocol. By default both depend on the size of
a call, so the other tests of this folder run each protocol at only some places of the code.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from support.libraries import client, library, run_client
from support.ranks import INVALID_USAGE, REMOTE_ERROR, SUCCESS, ranks

SOURCE = Path(__file__).parent / "client.c"
WAYS = {
    "through slots": {"COLLC_DIRECT": "0"},
    "direct": {"COLLC_DIRECT": "1"},
    "Simple": {"COLLC_PROTO": "Simple"},
    "LL": {"COLLC_PROTO": "LL"},
    "LL128": {"COLLC_PROTO": "LL128"},
    "Simple through slots": {"COLLC_PROTO": "Simple", "COLLC_DIRECT": "0"},
    "LL through slots": {"COLLC_PROTO": "LL", "COLLC_DIRECT": "0"},
}
CALLS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
every_way = pytest.mark.parametrize("way", WAYS)


def check_client(way: str, machine: str, nranks: int, kind: str) -> None:
    done = run_client([client(SOURCE, machine), kind, str(nranks)], settings=WAYS[way], timeout=600)
    assert int(done.stdout.split()[0]) > 1_000_000


@pytest.mark.parametrize("way", ["Simple", "LL", "LL through slots"])
def test_every_element_of_every_call_with_a_protocol_forced(way: str) -> None:
    """As one thread: with LL a chunk is a line, and processes on few cores take minutes for the largest calls."""
    check_client(way, "cores", 3, "thread")


@pytest.mark.slow
@every_way
@pytest.mark.parametrize("kind", ["thread", "threads", "processes"])
@pytest.mark.parametrize(("machine", "nranks"), [("pair", 2), ("odd", 3), ("cores", 3), ("dgx1v", 8)])
def test_every_element_of_every_call_each_way(way: str, machine: str, nranks: int, kind: str) -> None:
    check_client(way, machine, nranks, kind)


def run_fault(way: str, seed: int) -> None:
    """One rank dies, aborts, leaves, stops or differs in the middle of calls; the others hear of it in time."""
    rng = random.Random(seed)
    fault = rng.choice(["none", "kill", "abort", "destroy", "stop", "differs"])
    victim, count = rng.randrange(3), rng.choice([1, 33, 1000, 300_000])
    limit = {"COLLC_TIMEOUT": "5"} if fault == "stop" else {}
    with ranks(library(rng.choice(["odd", "cores"])), 3, **limit, **WAYS[way]) as team:
        assert {answer["result"] for answer in team.init()} == {SUCCESS}
        for _ in range(rng.randrange(3)):
            name, size = rng.choice(CALLS), rng.choice([1, 100, 50_000])
            assert {a["result"] for a in team.all(do="call", collective=name, count=size)} == {SUCCESS}
        others = [rank for rank in range(3) if rank != victim]
        if fault == "stop":
            team.signal(victim, signal.SIGSTOP)
        for rank in others:
            team.tell(rank, do="call", count=count)
        if fault == "none":
            team.tell(victim, do="call", count=count)
            assert {team.hear(rank)["result"] for rank in range(3)} == {SUCCESS}
            return
        if fault == "differs":
            team.tell(victim, do="call", count=count + 1)
            answers = [team.hear(rank) for rank in range(3)]
            assert any("calls differ" in answer["text"] for answer in answers)
            assert {answer["result"] for answer in answers} <= {SUCCESS, INVALID_USAGE, REMOTE_ERROR}
            return
        time.sleep(rng.choice([0, 0.05]))
        if fault == "kill":
            team.signal(victim, signal.SIGKILL)
        if fault in ("abort", "destroy"):
            assert team.ask(victim, do=fault)["result"] == SUCCESS
        answers = [team.hear(rank) for rank in others]
        assert {answer["result"] for answer in answers} == {REMOTE_ERROR}
        words = {
            "kill": f"rank {victim} has died",
            "abort": "ncclCommAbort was called",
            "destroy": f"rank {victim} has destroyed its communicator",
            "stop": "COLLC_TIMEOUT",
        }[fault]
        assert any(words in answer["text"] for answer in answers), answers
        assert all(team.ask(rank, do="destroy")["result"] == SUCCESS for rank in others)


@every_way
def test_a_fault_each_way(way: str) -> None:
    for seed in range(2):
        run_fault(way, 10 * list(WAYS).index(way) + seed)


@pytest.mark.slow
@every_way
@pytest.mark.parametrize("sweep", range(20))
def test_many_faults_each_way(way: str, sweep: int) -> None:
    for seed in range(10):
        run_fault(way, 1000 + 10 * sweep + seed)
