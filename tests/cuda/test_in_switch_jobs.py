"""Libraries with programs inside a switch on the mock driver: multicast objects between processes and threads, and
fallbacks.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from mock_jobs import job
from support.programs import TREE_COLLECTIVES
from test_cuda_runtime import HERE, compile_for_mock, mock_driver, written

from collc.checker.layout import When
from collc.checker.library import read_manifest
from collc.choose import library as choose
from collc.choose.modeled import ModelTables
from collc.choose.programs import Chosen
from collc.codegen.entry import Entry
from collc.packing.model import Plan
from collc.pipeline import Recorder, lower_in_switch

SWITCHED = """format: collc-topology/1
name: switched
gpus: 3
switches: [{name: nvs0, multicast: true, reduce: true}]
links:
  - [gpu0, nvs0, nvswitch, 100]
  - [gpu1, nvs0, nvswitch, 100]
  - [gpu2, nvs0, nvswitch, 100]
"""
FROM = 2048  # bytes of a call
CHUNK = 1024
TEAM = 2 << 20  # behind the multicast address: one piece


def small_calls(
    chosen: Chosen, packed: Sequence[Plan], model: ModelTables, recorder: Recorder, _status: Callable[[str], None]
) -> Chosen:
    """Does the same as `with_in_switch`, with the small calls and chunks of these tests."""
    target = dataclasses.replace(model.target, slots=2)
    programs = [lower_in_switch(plan, model.graph, target, 2, recorder) for plan in packed]
    entries = [Entry(program, number, when=When(FROM)) for number, program in enumerate(programs)]
    return dataclasses.replace(chosen, entries=(*chosen.entries, *entries))


@cache
def switched() -> Path:
    with mock.patch.object(choose, "with_in_switch", small_calls):
        topology = written("switched", SWITCHED)
        return compile_for_mock("switched", topology, chunk_bytes=CHUNK, in_switch=True, model="h100")


def run(
    calls: list[list[Any]], driver: Path | None = None, devices: str = "[0, 1, 2]", **settings: str
) -> dict[str, Any]:
    """Groups of one call each, on three ranks of one process."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(driver or mock_driver()),
        "COLLC_BOOTSTRAP_TIMEOUT": "60",
        "OPENBLAS_NUM_THREADS": "1",
        "COLLC_DEBUG": "INFO",
        "MOCK_GPUS": "3",
        **settings,
    }
    script = json.dumps([[call] for call in calls])
    command = [sys.executable, str(HERE / "mock_program.py"), str(switched()), devices, script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return {**answer, "log": done.stderr}


CALLS = [
    [one.value, type_name, op if one.reduces else None, int(one.rooted), count, in_place]
    for one in TREE_COLLECTIVES
    for type_name, op in (("float", "sum"), ("half", "avg"), ("int32", "min"), ("double", "prod"), ("uint8", "max"))
    for count, in_place in ((777, False), (2003, True))
]


def test_every_collective_between_processes() -> None:
    log: list[str] = []
    given = {"count": 1777}
    assert job("collectives", made=switched(), given=given, log=log, COLLC_DEBUG="INFO") == [[], [], []]
    assert all("MB behind a multicast address" in said for said in log)


def test_graphs_hold_calls_inside_the_switch_and_others() -> None:
    assert job("graphs_on_two_streams", made=switched()) == [[True] * 4] * 3


def test_types_and_operations_in_one_process() -> None:
    """Types and operations that switches cannot add run on the trees of the same library."""
    answer = run(CALLS)
    assert answer["wrong"] == []
    assert answer["log"].count("MB behind a multicast address") == 3


@pytest.mark.slow
def test_large_calls_do_run_inside_the_switch() -> None:
    """A switch that forgets a member spoils sums of large calls, and no others."""
    broken = mock_driver(fault="SWITCH_MEMBER")
    assert run([["all_reduce", "float", "sum", 0, 300, False]], broken)["wrong"] == []
    assert run([["all_reduce", "double", "prod", 0, 777, False]], broken)["wrong"] == []
    assert run([["all_reduce", "float", "sum", 0, 777, False]], broken)["wrong"] != []
    assert run([["all_reduce", "float", "sum", 0, 777, False]], broken, COLLC_NVLS="0")["wrong"] == []


def test_it_takes_the_memory_that_its_manifest_says() -> None:
    says = read_manifest(switched())["allocations"][0]["gpu_bytes"]
    ranks = job("memory_of_all_kinds", made=switched())
    assert says <= max(told for _, _, told in ranks)
    assert all(told <= most + 1024 for most, _, told in ranks)
    without = job("memory_of_all_kinds", made=switched(), COLLC_NVLS="0", MOCK_VMM="0")
    assert max(arena for _, arena, _ in without) + TEAM == says
    assert [told + TEAM for _, _, told in without] == [told for _, _, told in ranks]
    assert all(most < says and told < says for most, _, told in without)


REFUSALS = {
    "the user": ({"COLLC_NVLS": "0"}, "COLLC_NVLS=0"),
    "the GPU": ({"MOCK_MULTICAST": "0"}, "has no multicast"),
    "descriptors": ({"MOCK_VMM": "0"}, "no file descriptors of GPU memory"),
    "making": ({"MOCK_FAIL": "multicast_create"}, "making a multicast object failed"),
    "adding": ({"MOCK_FAIL": "multicast_add"}, "adding a GPU to a multicast object failed"),
    "binding": ({"MOCK_FAIL": "multicast_bind"}, "binding memory to a multicast object failed"),
}


QUICK = [("the user", 2), ("the GPU", 0), ("descriptors", 2), ("making", 0), ("adding", 2), ("binding", 0)]


@pytest.mark.parametrize(
    ("what", "rank"),
    [
        pytest.param(what, rank, marks=() if (what, rank) in QUICK else pytest.mark.slow)
        for what in REFUSALS
        for rank in (0, 2)
        if what != "making" or rank == 0  # which makes the object
    ],
)
def test_one_rank_that_cannot_is_enough(what: str, rank: int) -> None:
    """All ranks decide together, rank 0 says why on one line, and calls run on trees."""
    settings, why = REFUSALS[what]
    log: list[str] = []
    given = {"count": 1777}
    answers = job("collectives", made=switched(), given=given, own={rank: settings}, log=log, COLLC_DEBUG="INFO")
    assert answers == [[], [], []]
    assert [said.count("sums stay out of the switches") for said in log] == [1, 0, 0]
    assert f"rank {rank}" in log[0]
    assert why in log[0]


def test_ranks_that_share_a_gpu() -> None:
    answer = run([["all_reduce", "float", "sum", 0, 1777, False]], devices="[0, 0, 0]", COLLC_SHARE_GPU="1")
    assert answer["wrong"] == []
    assert answer["log"].count("sums stay out of the switches") == 1
    assert "several ranks share its GPU" in answer["log"]
