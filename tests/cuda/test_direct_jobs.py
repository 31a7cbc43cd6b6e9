"""Libraries of `collc compile --direct` on the mock driver: buffers of ncclMemAlloc that GPUs of one process read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mock_jobs import job
from support.libraries import ODD, shared_library
from support.programs import TREE_COLLECTIVES
from test_cuda_runtime import HERE, compile_for_mock, compiled_for_mock, library, mock_driver, run_library, written

from collc.checker.library import read_manifest

CALLS = [
    [one.value, type_name, op if one.reduces else None, int(one.rooted), count, in_place]
    for one in TREE_COLLECTIVES
    for type_name, op in (("float", "sum"), ("half", "avg"), ("int32", "min"), ("uint8", "max"))
    for count, in_place in ((776, False), (2003, True))
]
SUM = [["all_reduce", "float", "sum", 0, 776, False]]


@cache
def direct() -> Path:
    return compile_for_mock("odd-direct", written("odd", ODD), chunk_bytes=1024, direct=True)


def run(
    calls: list[list[Any]], driver: Path | None = None, made: Path | None = None, devices: str = "[0, 1, 2]", **own: str
) -> list[Any]:
    """What is wrong with groups of one call each, on three ranks of one process, over Simple."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(driver or mock_driver()),
        "COLLC_BOOTSTRAP_TIMEOUT": "60",
        "COLLC_PROTO": "Simple",
        "OPENBLAS_NUM_THREADS": "1",
        "MOCK_GPUS": "3",
        **own,
    }
    script = json.dumps([[call] for call in calls])
    command = [sys.executable, str(HERE / "mock_program.py"), str(made or direct()), devices, script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    wrong = json.loads(done.stdout.splitlines()[-1])["wrong"]
    assert isinstance(wrong, list)
    return wrong


@pytest.mark.parametrize("devices", ["[0, 1, 2]", "[2, 0, 0]", "[0, 0, 0]"])
def test_every_collective(devices: str) -> None:
    assert run(CALLS, devices=devices, COLLC_SHARE_GPU="1") == []


@cache
def shows() -> Path:
    """A driver whose kernels take every chunk from its slot: what ranks lend is wrong then, and nothing else."""
    return mock_driver(fault="UNREAD_PLACE")


def test_buffers_are_read_where_they_stand() -> None:
    assert run(SUM, shows()) != []


@pytest.mark.parametrize("own", [{"COLLC_DIRECT": "0"}, {"MOCK_NO_PEER": "all"}, {"COLLC_PROTO": "LL"}])
def test_else_chunks_pass_through_slots(own: dict[str, str]) -> None:
    """The user's wish, no peer access between the GPUs, another protocol."""
    assert run(SUM, shows(), None, "[0, 1, 2]", **own) == []


def test_libraries_without_that_lend_nothing() -> None:
    assert run(SUM, shows(), made=library()) == []
    assert [read_manifest(made).get("direct") for made in (direct(), library())] == [True, None]


def told(made: Path, **own: str) -> list[str]:
    """What the ranks of one process say of their buffers when they are made, in their order."""
    log: list[str] = []
    settings = {"MOCK_GPUS": "3", "COLLC_DEBUG": "INFO", **own}
    assert job("ranks_as_threads", 1, made=made, given={"turns": 1}, log=log, own={0: settings}) == [[]]
    return sorted(re.findall(r"rank \d: .*buffers.*", log[0]))


def test_the_log_says_between_whom() -> None:
    read = "buffers of ncclMemAlloc are read where they stand between it and rank(s)"
    assert told(direct()) == [f"rank 0: {read} 1, 2", f"rank 1: {read} 0, 2", f"rank 2: {read} 0, 1"]
    none = "no rank reads its buffers where they stand, nor it theirs"
    assert told(direct(), MOCK_NO_PEER="0-1") == [f"rank 0: {read} 2", f"rank 1: {read} 2", f"rank 2: {read} 0, 1"]
    assert told(direct(), MOCK_NO_PEER="all") == [f"rank {rank}: {none}" for rank in range(3)]
    last = told(direct(), COLLC_DIRECT="0")[2]
    assert last == f"rank 2: {read} 0, 1; it lends none (COLLC_DIRECT=0)"
    assert told(library()) == []
    log: list[str] = []
    assert job("made", made=direct(), log=log, COLLC_DEBUG="INFO") == [True] * 3
    assert [one.count(none) for one in log] == [1, 1, 1]


def test_written_out_steps_run_where_nothing_can_be_lent() -> None:
    """Kernels that look for addresses give them up."""
    made = compiled_for_mock("odd-direct-written", written("odd", ODD), chunk_bytes=1024, direct=True, specialise=True)
    assert made.device is not None
    driver = mock_driver(code=made.device.written)
    settings = {"MOCK_GPUS": "3", "COLLC_PROTO": "Simple", "LD_LIBRARY_PATH": str(driver)}
    for peers, runs in ({}, 0), ({"MOCK_NO_PEER": "all"}, 3):
        answer = run_library(made.path, [[one] for one in SUM], [0, 1, 2], **settings, **peers)
        assert (answer["wrong"], answer["calls"]["written"]) == ([], runs)


def test_ranks_of_other_processes_get_chunks_in_slots() -> None:
    """Buffers are not mapped between processes."""
    given = {"count": 1776}
    assert job("collectives", made=direct(), given=given, COLLC_PROTO="Simple") == [[], [], []]


def graphs(**own: str) -> list[Any]:
    """What is wrong with graphs of three ranks, threads of one process, that overwrite their inputs behind them."""
    settings = {"MOCK_GPUS": "3", "COLLC_PROTO": "Simple", **own}
    return list(job("graphs_of_threads", 1, made=direct(), given={"turns": 4}, own={0: settings})[0])


def test_graphs_hold_what_their_calls_lend() -> None:
    assert graphs() == []
    # Nothing but wrong sums, and those where a driver takes all from slots: so the graphs did lend.
    wrong = graphs(LD_LIBRARY_PATH=str(shows()))
    assert wrong
    assert all("turn" in one for one in wrong)
    assert graphs(LD_LIBRARY_PATH=str(shows()), COLLC_DIRECT="0") == []


def benched(made: Path, driver: Path, *options: str, **own: str) -> subprocess.CompletedProcess[str]:
    """A benchmark of one all_reduce, on three GPUs over Simple."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "COLLC_PROTO": "Simple", "MOCK_GPUS": "3"}
    environment |= {"LD_LIBRARY_PATH": str(driver), **own}
    command = [sys.executable, "-m", "collc", "bench", str(made), "-b", "4K", "-e", "4K", "-n", "2", "-w", "1"]
    command += ["--collective", "all_reduce", "--json", *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=200)


def test_benchmarks_measure_what_is_read_where_it_stands() -> None:
    """Results that are wrong where a driver takes all from slots; between guards that nobody touches."""

    def wrong(made: Path, driver: Path) -> set[bool]:
        done = benched(made, driver)
        return {row["wrong"] > 0 for row in json.loads(done.stdout)["rows"]}

    assert wrong(direct(), mock_driver()) == {False}
    assert True in wrong(direct(), shows())
    assert wrong(library(), shows()) == {False}


def test_a_benchmark_without_memory_for_that_says_what_to_do() -> None:
    done = benched(direct(), mock_driver(), "-e", "64M", "-b", "64M", MOCK_MEGABYTES="50")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert "ncclMemAlloc failed" in error["what"]
    assert error["hint"] == "no memory on the GPU: choose a smaller -e"


def test_children_forked_off_amid_frees_can_free() -> None:
    """No lock that a thread of their parent held stands in their way."""
    given = {"with": str(shared_library(HERE / "fork_amid_frees.c"))}
    assert job("forked_amid_frees", 1, made=direct(), given=given) == [300]


def test_graphs_of_processes_hold_what_slots_carry() -> None:
    assert job("graphs_on_two_streams", made=direct(), COLLC_PROTO="Simple") == [[True] * 4] * 3
