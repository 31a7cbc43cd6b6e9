"""Uses of communicators other than collectives (mock_habits.py), on the mock driver."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from mock_habits import HABITS, Habits
from mock_jobs import job
from support.profiler import plugin
from test_cuda_runtime import library
from test_random_jobs import MACHINES, Machine, one_each, same


def check(machine: Machine, **settings: str) -> None:
    own = {rank: {**settings, **one} for rank, one in machine.items()}
    answers = job("habits", made=library(allocations="1..3"), own=own, COLLC_BOOTSTRAP_TIMEOUT="100")
    assert answers == [dict.fromkeys(HABITS, True)] * 3, (own, answers)


@pytest.mark.parametrize("machine", [same(), one_each(MOCK_NO_PEER="0-1")], ids=["peers", "one pair pinned"])
def test_what_programs_do_with_communicators(machine: Machine) -> None:
    check(machine)


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["2", "3", "4"])
@pytest.mark.parametrize("at", range(len(MACHINES["peers"]) + len(MACHINES["host"])))
def test_what_programs_do_on_every_machine(at: int, seed: str) -> None:
    machines = [*MACHINES["peers"], *MACHINES["host"]]
    check(machines[at], MOCK_SEED=seed, MOCK_QUEUES="1" if seed == "3" else "8")


def test_every_habit_is_tried() -> None:
    """A method that nobody calls tests nothing."""
    methods = {name: inspect.signature(method) for name, method in vars(Habits).items() if inspect.isfunction(method)}
    answering = {
        name for name, one in methods.items() if [*one.parameters] == ["self"] and one.return_annotation == "bool"
    }
    assert answering == {*HABITS, "named", "shrunk_to_the_living"}


@pytest.mark.parametrize("settings", [{}, {"MOCK_NO_PEER": "all"}], ids=["peers", "pinned"])
@pytest.mark.parametrize("how", ["died", "stuck"])
def test_ranks_go_on_without_one_that_died_or_is_stuck(how: str, settings: dict[str, str]) -> None:
    made, own = library(allocations="1..3"), dict.fromkeys(range(3), settings)
    answers = job("shrunk_to_the_living", made=made, given={"how": how}, own=own, COLLC_BOOTSTRAP_TIMEOUT="100")
    assert [answers[0], answers[2]] == [True, True], answers
    assert how == "died" or answers[1] is True


@pytest.mark.parametrize("settings", [{}, {"MOCK_NO_PEER": "all"}], ids=["peers", "pinned"])
def test_ranks_may_be_threads(settings: dict[str, str]) -> None:
    own = {0: {"MOCK_GPUS": "3", **settings}}
    assert job("ranks_as_threads", 1, given={"turns": 12}, own=own, COLLC_BOOTSTRAP_TIMEOUT="100") == [[]]


def test_names_of_communicators(tmp_path: Path) -> None:
    """Profilers and the log have them."""
    log: list[str] = []
    profiler = {"NCCL_PROFILER_PLUGIN": str(plugin("6")), "PROFILER_TEST": str(tmp_path / "told")}
    assert job("named", log=log, own=dict.fromkeys(range(3), profiler), COLLC_DEBUG="INFO") == [True] * 3
    for rank, said in enumerate(log):
        names = [line.split('"')[1] for line in said.splitlines() if f"rank {rank} of 3: communicator" in line]
        assert names == ["all of them", "all of them", "a part"]
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    for path in files:
        begun = [line for line in path.read_text().splitlines() if line.startswith("init")]
        assert [line.split(" id ")[0] for line in begun] == [
            "init v6 all of them",
            "init v6 all of them",
            "init v6 a part",
        ]
