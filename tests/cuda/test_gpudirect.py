"""Slots between servers in memory of GPUs, on the mock driver, over a network plugin that judges its caller.

To the plugin (net_plugin.cpp) what was received into memory of a GPU is there only when it has been flushed, and what
is sent is loaded while it leaves. It flushes one GPU, that of the process's first comm, and wants it in use whenever it
is told of such memory. From then on the CPU's loads and stores there end the process: kernels and the plugin have
addresses of their own (emulator.h, seal).
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from support.failures import a_killed_rank_is_named
from support.net_plugin import VERSIONS, Judge
from support.ranks import SUCCESS
from test_cuda_servers import FEW, SHAPES, over, processes

ON = {"COLLC_GPUDIRECT": "1", "COLLC_DEBUG": "INFO", "JUDGE_MEMORY": "3", "COLLC_PROTO": "Simple"}
USED = "GPUDirect: slots of rank {} between machines are in memory of its GPU"
ONE = {"kinds": FEW[:1], "counts": [1, 777]}


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return Judge(tmp_path / "judge.log")


def direct(judge: Judge, hosts: str, scenario: str, name: str = "2+2", **more: Any) -> list[Any]:
    """What each rank says of a scenario; slots of the first rank of each server were on its GPU."""
    log: list[str] = []
    settings = {**judge.settings, **ON, **more.pop("settings", {})}
    answers = over(hosts, scenario, name, log=log, settings=settings, **more)
    for rank, text in enumerate(log):
        assert (USED.format(rank) in text) == (hosts.index(hosts[rank]) == rank), (answers, text)
    assert judge.lines("messages on GPUs"), answers
    return answers


def test_every_collective(judge: Judge) -> None:
    assert direct(judge, "aabb", "weighted_calls", given=ONE) == [[]] * 4


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_types_and_operations_over_every_version(version: int, tmp_path: Path) -> None:
    judge = Judge(tmp_path / "judge.log", version)
    given = {"kinds": FEW, "counts": [1, 777, 5001]}
    assert direct(judge, "abba", "weighted_calls", given=given) == [[]] * 4


@pytest.mark.slow
def test_lines_stay_in_host_memory(judge: Judge) -> None:
    """Calls of both protocols in turn."""
    given = {"kinds": FEW[:1], "counts": [100, 300_000, 7]}
    assert direct(judge, "aabb", "weighted_calls", given=given, settings={"COLLC_PROTO": ""}, seconds=400) == [[]] * 4


@pytest.mark.slow
def test_graphs_are_replayed(judge: Judge) -> None:
    assert direct(judge, "aabb", "weighted_graphs", given={"count": 2000}) == [[]] * 4


@pytest.mark.slow
def test_transfers_in_groups_and_graphs(judge: Judge) -> None:
    """Of many slots too."""
    for given in ({"tensors": 6}, {"tensors": 1, "count": 200_000, "once": True}):
        assert direct(judge, "aabb", "many_in_a_group", given=given) == [True] * 4
    assert direct(judge, "aabb", "coalesced") == [True] * 4


@pytest.mark.slow
def test_splits_and_shrinks(judge: Judge) -> None:
    every = "2+2:0-3/0,2/0-2/0-1/2-3"
    assert direct(judge, "aabb", "split_and_shrink", every, settings={"MOCK_SEED": "3"}) == [True] * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["3+5", "1+1+6"])
def test_other_shapes(judge: Judge, name: str) -> None:
    hosts = SHAPES[name]
    given = {"kinds": FEW, "counts": [777, 5001], "count": 2000, "tensors": 3}
    for scenario in ("weighted_calls", "weighted_graphs"):
        assert direct(judge, hosts, scenario, name, given=given, seconds=500) == [[]] * len(hosts), scenario
    assert direct(judge, hosts, "many_in_a_group", name, given=given, seconds=500) == [True] * len(hosts)


def test_chunks_that_nobody_flushes_are_noticed(judge: Judge) -> None:
    given = {"kinds": FEW[:1], "counts": [777]}
    assert any(direct(judge, "aabb", "weighted_calls", given=given, settings={"JUDGE_FAULT": "no flush"}))


def test_a_courier_that_touches_memory_of_a_gpu_is_noticed(judge: Judge) -> None:
    statuses: list[int] = []
    settings = {**judge.settings, **ON, "JUDGE_FAULT": "touch"}
    over("ab", "collectives", "1+1", statuses=statuses, settings=settings)
    assert -signal.SIGSEGV in statuses


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(3))
def test_a_killed_rank_is_named_by_all(judge: Judge, victim: int, capfd: pytest.CaptureFixture[str]) -> None:
    with processes("abc", "1+1+1", **judge.settings, **ON) as team:
        others = a_killed_rank_is_named(team, victim, 3000)
        assert [team.ask(rank, do="destroy")["result"] for rank in others] == [SUCCESS] * 2
    said = capfd.readouterr().err
    assert all(USED.format(rank) in said for rank in range(3))
    assert judge.lines("messages on GPUs")


@pytest.mark.parametrize(
    ("rank", "setting", "why"),
    [
        (2, {"JUDGE_REFUSES": "gpus:12"}, "engine plugin: regMr of Judge: a system error"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (2, {"MOCK_GPUDIRECT": "0"}, "its GPU has no GPUDirect RDMA"),
                (0, {"JUDGE_FAIL": "regMr:4"}, "engine plugin: regMr of Judge: a system error"),
                (0, {"JUDGE_MEMORY": "1"}, "takes no memory of GPUs"),
                (2, {"COLLC_GPUDIRECT": "0"}, ""),
            ]
        ),
    ],
)
def test_a_rank_that_cannot_has_host_slots(judge: Judge, rank: int, setting: dict[str, str], why: str) -> None:
    """It says why, unless it was not asked; the other server's go on with their GPU."""
    log: list[str] = []
    settings = {**judge.settings, **ON}
    assert over("aabb", "weighted_calls", log=log, own={rank: setting}, settings=settings, given=ONE) == [[]] * 4
    said = [[line for line in text.splitlines() if "GPUDirect" in line] for text in log]
    assert said[1] == said[3] == []
    assert USED.format(2 - rank) in said[2 - rank][0]
    assert not why or (f"no GPUDirect: rank {rank}: " in said[rank][0] and why in said[rank][0])
    assert len(said[rank]) == bool(why)


@pytest.mark.slow
def test_an_engine_without_it_uses_host_slots() -> None:
    log: list[str] = []
    assert over("aabb", "weighted_calls", log=log, settings={**ON, "COLLC_NET": "tcp"}, given=ONE) == [[]] * 4
    for rank in (0, 2):
        assert f"no GPUDirect: rank {rank}: engine tcp: it sends from host memory alone" in log[rank]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2])
def test_a_creation_that_fails_after_machines_were_joined(judge: Judge, rank: int) -> None:
    """Rank 2 has the courier of its machine, rank 1 has none."""
    settings = {**judge.settings, **ON}
    answers = over("aabb", "collectives", own={rank: {"MOCK_FAIL": "allocate_host"}}, settings=settings)
    for answer in answers:
        assert "allocating pinned memory failed" in answer["error"]


@pytest.mark.slow
def test_slots_on_a_gpu_are_part_of_what_a_communicator_takes(judge: Judge) -> None:
    used = [over("aabb", "memory_of_all_kinds", settings={**judge.settings, **more}) for more in ({}, ON)]
    for rank, (less, more) in enumerate(zip(*used, strict=True)):
        assert (less[2] < more[2]) == (rank in (0, 2))


def test_two_gpus_of_a_process(judge: Judge) -> None:
    """Three communicators: the courier is on one GPU, then on the other, then on the first one again."""
    log: list[str] = []
    settings = {**judge.settings, **ON}
    assert over("ab", "communicators_of_two_gpus", log=log, settings={**settings, "MOCK_GPUS": "2"}) == [[]] * 2
    for process, text in enumerate(log):
        said = [line for line in text.splitlines() if "GPUDirect" in line]
        assert len(said) == 3, text
        assert USED.format(2 * process) in said[0]
        assert all("several GPUs of this process have couriers" in line for line in said[1:])
    assert judge.lines("messages on GPUs")


def test_two_communicators_of_a_process_per_gpu(judge: Judge) -> None:
    assert direct(judge, "abc", "two_in_a_group", "1+1+1", given={}) == [True] * 3
