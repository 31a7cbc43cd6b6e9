"""The CUDA target under each protocol on the mock driver: random calls, and random faults.

Data between processes are in test_cuda_jobs.py; between processes it is tested here how waits end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import finalized
from support.ranks import INVALID_USAGE, REMOTE_ERROR, SUCCESS, Ranks
from test_cuda_runtime import library, mock_driver

HERE = Path(__file__).parent
PROTOCOLS = ("Simple", "LL", "LL128")


def chaos(kind: str, seeds: range, **settings: str) -> dict[str, str]:
    """Returns the result of each seed. Nothing is left behind, and only the forced protocol ran."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(mock_driver()),
        "COLLC_BOOTSTRAP_TIMEOUT": "60",
        "OPENBLAS_NUM_THREADS": "1",
        "MOCK_PATIENCE_MS": "20000",
        **settings,
    }
    command = [sys.executable, str(HERE / "mock_chaos.py"), str(library()), kind, *map(str, seeds)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=200 + 90 * len(seeds)
    )
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    answer = json.loads(done.stdout.splitlines()[-1])
    assert "error" not in answer, answer
    calls = answer["calls"]
    assert calls["allocate"] == calls["release"] > 0
    assert calls["event_create"] == calls["event_destroy"] > 0
    assert calls["register_host"] == calls["unregister_host"] >= ("MOCK_NO_PEER" in settings)
    assert {name for name in PROTOCOLS if calls[name]} == {settings["COLLC_PROTO"]}
    assert answer["threads"] <= 4  # this one, one that waited for the device, the watcher, the mock's
    assert answer["descriptors"] < 16
    said = answer["said"]
    assert set(said) == set(map(str, seeds))
    return dict(said)


def check_conformance(protocol: str, seeds: range) -> None:
    own = chaos("conformance", seeds, COLLC_PROTO=protocol, MOCK_GPUS="3")
    shared = chaos("conformance", seeds, COLLC_PROTO=protocol, COLLC_SHARE_GPU="1")
    small = chaos(
        "conformance", seeds, COLLC_PROTO=protocol, COLLC_SHARE_GPU="1", COLLC_CHUNK="176", COLLC_CHANNELS="2"
    )
    assert {*own.values(), *shared.values(), *small.values()} == {""}


def check_faults(protocol: str, seeds: range) -> None:
    said = chaos("faults", seeds, COLLC_PROTO=protocol, MOCK_GPUS="3")
    assert [line for line in said.values() if "OUT OF ORDER" in line] == []


# How GPUs reach each other. Over pinned memory LL128 would run as Simple.
FAR = {"peers": {}, "pinned": {"MOCK_NO_PEER": "all"}, "one pair pinned": {"MOCK_NO_PEER": "0-1"}}
WAYS = [(protocol, far) for far in FAR for protocol in PROTOCOLS if far == "peers" or protocol != "LL128"]
# Between peers, and one over pinned memory; the others as long sweeps.
SOME_AND_SLOW = [
    way if way[1] == "peers" or way == ("LL", "pinned") else pytest.param(*way, marks=pytest.mark.slow) for way in WAYS
]


# Each of these takes ten seconds; `make chaos-protocols` runs all.
ONE_AND_SLOW = [PROTOCOLS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in PROTOCOLS[1:])]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.slow_for("Simple")
def test_random_calls_in_groups_and_split_communicators(protocol: str) -> None:
    check_conformance(protocol, range(2))


@pytest.mark.parametrize("protocol", ONE_AND_SLOW)
def test_random_faults(protocol: str) -> None:
    check_faults(protocol, range(4))


@pytest.mark.slow
@pytest.mark.parametrize("sweep", range(1, 21))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_random_calls(protocol: str, sweep: int) -> None:
    check_conformance(protocol, range(10 * sweep, 10 * sweep + 10))


@pytest.mark.slow
@pytest.mark.parametrize("sweep", range(1, 21))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_random_faults(protocol: str, sweep: int) -> None:
    check_faults(protocol, range(10 * sweep, 10 * sweep + 10))


@pytest.mark.slow
@pytest.mark.parametrize("sweep", range(1, 11))
@pytest.mark.parametrize("protocol", PROTOCOLS[:2])
def test_many_random_calls_and_faults_over_pinned_memory(protocol: str, sweep: int) -> None:
    seeds, far = range(10 * sweep, 10 * sweep + 10), ("all", "0-1", "0-2,1-2")[sweep % 3]
    small = {"COLLC_CHUNK": "176", "COLLC_CHANNELS": "2"} if sweep % 2 else {}
    right = chaos("conformance", seeds, COLLC_PROTO=protocol, MOCK_GPUS="3", MOCK_NO_PEER=far, **small)
    assert set(right.values()) == {""}
    said = chaos("faults", seeds, COLLC_PROTO=protocol, MOCK_GPUS="3", MOCK_NO_PEER=far)
    assert [line for line in said.values() if "OUT OF ORDER" in line] == []


@contextmanager
def processes(protocol: str, far: str, **settings: str) -> Iterator[Ranks]:
    """Three ranks as processes on three GPUs, with a communicator."""
    settings |= FAR[far]
    environment = {"LD_LIBRARY_PATH": str(mock_driver()), "MOCK_IPC": "1", "MOCK_PATIENCE_MS": "20000"}
    team = Ranks(library(), 3, {**environment, "COLLC_PROTO": protocol, **settings}, HERE / "mock_rank.py")
    try:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        yield team
    finally:
        team.close()


@pytest.mark.parametrize(("protocol", "far"), SOME_AND_SLOW)
def test_a_killed_rank_ends_the_others_waits(protocol: str, far: str) -> None:
    with processes(protocol, far) as team:
        for rank in (0, 2):
            team.tell(rank, do="call", count=3000)
        time.sleep(0.3)
        team.signal(1, signal.SIGKILL)
        for rank in (0, 2):
            answer = team.hear(rank)
            assert answer["result"] == REMOTE_ERROR
            assert "rank 1 has died" in answer["text"]
            assert answer["seconds"] < 19  # not the patience of the driver
            assert team.ask(rank, do="destroy")["result"] == SUCCESS


@pytest.mark.parametrize(("protocol", "far"), SOME_AND_SLOW)
def test_a_stopped_rank_ends_at_the_time_limit(protocol: str, far: str) -> None:
    with processes(protocol, far, COLLC_TIMEOUT="0.5") as team:
        team.signal(2, signal.SIGSTOP)
        for rank in (0, 1):
            team.tell(rank, do="call")
        answers = [team.hear(rank) for rank in (0, 1)]
        assert [answer["result"] for answer in answers] == [REMOTE_ERROR] * 2
        assert all("COLLC_TIMEOUT: after 0.5 s" in answer["text"] for answer in answers)
        assert all("; rank 2 has not made call 1" in answer["text"] for answer in answers)
        team.signal(2, signal.SIGCONT)
        assert team.ask(2, do="call")["result"] == REMOTE_ERROR


def test_the_end_of_a_communicator_tells_what_the_others_called() -> None:
    with processes("LL", "peers", COLLC_TIMEOUT="60") as team:
        finalized.check_all(team)


def test_the_end_of_a_communicator_within_the_time_limit() -> None:
    with processes("LL", "peers", COLLC_TIMEOUT="0.5") as team:
        finalized.the_time_limit_names_the_ranks_that_have_not_come(team)


@pytest.mark.parametrize(("protocol", "far"), SOME_AND_SLOW)
def test_abort_and_departure_free_the_others(protocol: str, far: str) -> None:
    for farewell, words in (
        ("abort", "ncclCommAbort was called"),
        ("destroy", "rank 1 has destroyed its communicator"),
    ):
        with processes(protocol, far) as team:
            for rank in (0, 2):
                team.tell(rank, do="call")
            time.sleep(0.2)
            assert team.ask(1, do=farewell)["result"] == SUCCESS
            answers = [team.hear(rank) for rank in (0, 2)]
            assert [answer["result"] for answer in answers] == [REMOTE_ERROR] * 2
            assert any(words in answer["text"] for answer in answers)


COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")


def calls() -> list[dict[str, object]]:
    """Each collective with one thing changed at a time."""
    made: list[dict[str, object]] = []
    for collective in COLLECTIVES:
        base: dict[str, object] = {"collective": collective, "count": 100, "type": 7, "op": 0, "root": 0}
        made += [base, {**base, "count": 101}, {**base, "count": 0}, {**base, "type": 8}]
        if "reduce" in collective:
            made.append({**base, "op": 2})
        if collective in ("broadcast", "reduce"):
            made.append({**base, "root": 1})
    return made


def differences() -> list[tuple[dict[str, object], dict[str, object], int]]:
    """Every ordered pair of calls that differ, and which rank makes the second. Calls of nothing end for all."""
    every = calls()
    pairs = [(usual, odd) for usual in every for odd in every if usual != odd and (usual["count"] or odd["count"])]
    return [(usual, odd, victim) for usual, odd in pairs for victim in range(3)]


def check_differences(protocol: str, far: str, cases: list[tuple[dict[str, object], dict[str, object], int]]) -> None:
    with processes(protocol, far) as team:
        for turn, (usual, odd, victim) in enumerate(cases):
            if turn:
                assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
            for rank in range(3):
                team.tell(rank, do="call", **(odd if rank == victim else usual))
            answers = [team.hear(rank) for rank in range(3)]
            assert [answer["result"] for answer in answers] == [INVALID_USAGE] * 3, (usual, odd, victim, answers)
            for answer in answers:
                assert "calls differ: call 1 of rank" in answer["text"]
                assert f"is {usual['collective']} of {usual['count']} elements" in answer["text"]
                assert f"is {odd['collective']} of {odd['count']} elements" in answer["text"]
            assert [team.ask(rank, do="destroy")["result"] for rank in range(3)] == [SUCCESS] * 3


@pytest.mark.parametrize("protocol", ONE_AND_SLOW)
def test_calls_that_differ_are_found(protocol: str) -> None:
    every = differences()
    check_differences(protocol, "peers", every[PROTOCOLS.index(protocol) :: len(every) // 8])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(12))
@pytest.mark.parametrize(("protocol", "far"), WAYS)
def test_all_calls_that_differ_are_found(protocol: str, far: str, part: int) -> None:
    check_differences(protocol, far, differences()[part::12])
