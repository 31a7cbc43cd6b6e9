"""A class of links that fails between calls: all ranks leave it out of the same calls, and the job goes on."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.libraries import client, library, runtime_program
from support.ranks import REMOTE_ERROR, SUCCESS, Ranks, ranks

HERE = Path(__file__).parent


@pytest.mark.parametrize("nranks", [2, 4])
def test_all_ranks_leave_a_class_out_of_the_same_calls(nranks: int) -> None:
    program = runtime_program(HERE / "losses.cpp", frozenset())
    done = subprocess.run([program, str(nranks), "1000"], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    calls, without = map(int, done.stdout.split())
    assert calls // 4 < without < calls


def test_ranks_that_look_too_early_are_found_out() -> None:
    program = runtime_program(HERE / "losses.cpp", frozenset())
    command = [str(program), "4", "100000", "careless"]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout == "1\n"


@pytest.mark.parametrize("ways", ["threads", "processes"])
@pytest.mark.parametrize("balance", ["0", "always", "random:3"])
def test_results_are_right_whenever_classes_are_lost(ways: str, balance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each communicator two or three classes, by any rank, between calls and while others are in them."""
    monkeypatch.setenv("COLLC_DIRECT", "0")
    monkeypatch.setenv("COLLC_BALANCE", balance)
    monkeypatch.setenv("COLLC_DEBUG", "ERROR")
    command = [str(client(HERE / "losing.c", "joint")), ways, "4", "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    calls, lost = map(int, done.stdout.split())
    assert calls == 480
    assert lost > 30


CALL: dict[str, Any] = {"do": "call", "collective": "all_gather", "count": 1 << 18}


@contextmanager
def working(dead: str, **settings: str) -> Iterator[Ranks]:
    """Four ranks that have made two calls over all classes. Those of `dead` carry nothing from the third one on."""
    throttle = ",".join(f"{name}:0.000000001@3" for name in dead.split(","))
    given = {"COLLC_DIRECT": "0", "COLLC_THROTTLE": throttle, "COLLC_TIMEOUT": "60", "COLLC_DEBUG": "WARN"} | settings
    with ranks(library("joint"), 4, **given) as team:
        assert {answer["result"] for answer in team.init()} == {SUCCESS}
        for _ in range(2):
            assert {answer["result"] for answer in team.all(**CALL)} == {SUCCESS}
        yield team


@pytest.mark.parametrize("settings", [{}, {"COLLC_BALANCE": "0"}, {"COLLC_WEIGHTS": "nvlink:1,pcie:200"}])
def test_a_class_lost_between_calls_carries_nothing_and_the_job_goes_on(
    settings: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    with working("pcie", **settings) as team:
        assert team.ask(2, do="lose", name="pcie")["lost"] == 1
        assert team.ask(1, do="lose", name="pcie")["lost"] == 0  # as all know
        for _ in range(10):
            answers = team.all(**CALL)
            assert {answer["result"] for answer in answers} == {SUCCESS}, answers
    said = "rank 2: pcie has failed, reported by collc_lose_class: calls from call 3 on run without it"
    assert capfd.readouterr().err.count(said) == 1


def test_without_a_word_the_call_fails_with_the_name_of_the_class() -> None:
    with working("pcie", COLLC_TIMEOUT="2") as team:
        answers = team.all(**CALL)
    assert {answer["result"] for answer in answers} == {REMOTE_ERROR}
    assert any(re.search(r"waits for rank \d in all_gather over pcie", answer["text"]) for answer in answers)


def test_where_no_class_is_left_the_call_fails_with_a_name() -> None:
    with working("nvlink,pcie,net", COLLC_TIMEOUT="2") as team:
        for name in ("nvlink", "pcie", "net"):
            assert team.ask(0, do="lose", name=name)["lost"] == 1
        answers = team.all(**CALL)
    assert {answer["result"] for answer in answers} == {REMOTE_ERROR}
    assert any(re.search(r"in all_gather over (nvlink|pcie|net), which has failed, \(", one["text"]) for one in answers)


def test_names_that_are_no_classes_are_refused() -> None:
    with working("pcie") as team:
        assert team.ask(0, do="lose", name="rail")["lost"] == 0
