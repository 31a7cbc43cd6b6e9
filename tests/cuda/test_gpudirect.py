"""Slots between servers in memory of GPUs, on the mock driver, over a network plugin that judges its caller.

To the plugin (net_plugin.cpp) memory of a GPU is that of the mock driver which cards may touch. Where it is another
process's, the courier cannot load or store there, and what was received is there only when it has been flushed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.failures import a_killed_rank_is_named
from support.net_plugin import VERSIONS, Judge
from support.ranks import SUCCESS
from test_cuda_servers import FEW, SHAPES, over, processes

ON = {"COLLC_GPUDIRECT": "1", "COLLC_DEBUG": "INFO", "JUDGE_MEMORY": "3", "COLLC_PROTO": "Simple"}
USED = "GPUDirect: slots between machines are in memory of the GPUs"
ONE = {"kinds": FEW[:1], "counts": [1, 777]}


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return Judge(tmp_path / "judge.log")


def direct(judge: Judge, hosts: str, scenario: str, name: str = "2+2", **more: Any) -> list[Any]:
    """What each rank says of a scenario whose chunks between servers were in memory of GPUs."""
    log: list[str] = []
    settings = {**judge.settings, **ON, **more.pop("settings", {})}
    answers = over(hosts, scenario, name, log=log, settings=settings, **more)
    assert USED in log[0], (answers, log[0])
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


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(4))
def test_a_killed_rank_is_named_by_all(judge: Judge, victim: int) -> None:
    with processes("aabb", **judge.settings, **ON) as team:
        others = a_killed_rank_is_named(team, victim, 3000)
        assert [team.ask(rank, do="destroy")["result"] for rank in others] == [SUCCESS] * 3


LACKS = "its GPU has no GPUDirect RDMA"


@pytest.mark.parametrize(
    ("rank", "setting", "why"),
    [
        (2, {"JUDGE_REFUSES": "gpus:12"}, "engine plugin: regMr of Judge: a system error"),
        (3, {"MOCK_GPUDIRECT": "0"}, LACKS),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (1, {"COLLC_GPUDIRECT": "0"}, "COLLC_GPUDIRECT=1 is not set"),
                (3, {"MOCK_GPUDIRECT": "2"}, f"{LACKS} for memory that processes share"),
                (3, {"MOCK_FAIL": "create"}, "allocating failed: mock error"),
                (3, {"MOCK_FAIL": "export"}, "making a file descriptor of GPU memory failed"),
                (3, {"MOCK_FAIL": "map"}, "mapping failed"),
                (2, {"MOCK_FAIL": "import"}, "the memory of rank 3 cannot be mapped"),
                (2, {"MOCK_NO_VMM": "0-1"}, "the memory of rank 3 cannot be mapped"),
                (2, {"JUDGE_FAIL": "regMr:5"}, "engine plugin: regMr of Judge: a system error"),
                (0, {"JUDGE_MEMORY": "1"}, "takes no memory of GPUs"),
                (None, {"COLLC_NET": "tcp"}, "engine tcp: it sends from host memory alone"),
            ]
        ),
    ],
)
def test_all_have_host_slots_where_one_rank_cannot(
    judge: Judge, rank: int | None, setting: dict[str, str], why: str
) -> None:
    """Rank 0 says which one, and why."""
    log: list[str] = []
    settings = {**judge.settings, **ON, **(setting if rank is None else {})}
    own = {} if rank is None else {rank: setting}
    answers = over("aabb", "weighted_calls", log=log, own=own, settings=settings, given=ONE)
    assert answers == [[]] * 4
    (said,) = [line for text in log for line in text.splitlines() if "GPUDirect" in line]
    assert f"no GPUDirect: rank {rank or 0}: " in said
    assert why in said
    assert not judge.lines("messages on GPUs")


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
    for less, more in zip(*used, strict=True):
        assert less[2] < more[2]
