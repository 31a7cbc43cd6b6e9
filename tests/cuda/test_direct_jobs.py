"""Libraries of `collc compile --direct` on the mock driver: buffers of ncclMemAlloc that GPUs read where they stand.

Kernels read buffers of their process, and buffers of other processes after these are mapped.
"""

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
from mock_habits import HABITS
from mock_jobs import job
from planted_faults import NO_FAULT
from support.libraries import ODD, shared_library
from support.programs import TREE_COLLECTIVES
from test_cuda_runtime import (
    HERE,
    SLOW_ODD,
    compile_for_mock,
    compiled_for_mock,
    library,
    mock_driver,
    run_library,
    written,
)
from test_random_jobs import Machine, one_each, same

from collc.checker.library import read_manifest

CALLS = [
    [one.value, type_name, op if one.reduces else None, int(one.rooted), count, in_place]
    for one in TREE_COLLECTIVES
    for type_name, op in (("float", "sum"), ("half", "avg"), ("int32", "min"), ("uint8", "max"))
    for count, in_place in ((776, False), (2003, True))
]
SUM = [["all_reduce", "float", "sum", 0, 776, False]]


# Processes read each other's buffers.
ABROAD = {"COLLC_DIRECT_PROCESSES": "1"}


@cache
def direct() -> Path:
    return compile_for_mock("odd-direct", written("odd", ODD), chunk_bytes=1024, direct=True)


@cache
def for_parts() -> Path:
    """One that serves one rank, two and all three."""
    return compile_for_mock("odd-direct-parts", written("odd", ODD), chunk_bytes=4096, direct=True, allocations="1..3")


def run(
    calls: list[list[Any]], driver: Path | None = None, made: Path | None = None, devices: str = "[0, 1, 2]", **own: str
) -> list[Any]:
    """Returns the errors of groups of one call each, on three ranks of one process, over Simple."""
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


@pytest.mark.parametrize("abroad", ["0", "1"])
@pytest.mark.parametrize("devices", ["[0, 1, 2]", "[2, 0, 0]", "[0, 0, 0]"])
def test_every_collective(devices: str, abroad: str) -> None:
    """In memory of either kind."""
    assert run(CALLS, devices=devices, COLLC_SHARE_GPU="1", COLLC_DIRECT_PROCESSES=abroad) == []


@cache
def shows() -> Path:
    """A driver whose kernels take every chunk from its slot: what ranks lend is wrong then, and nothing else."""
    return mock_driver(fault="UNREAD_PLACE")


def test_buffers_are_read_where_they_stand() -> None:
    assert run(SUM, shows()) != []


def test_registered_memory_of_other_kinds_is_read_where_it_stands_too() -> None:
    """Registered memory from cudaMalloc is read in place."""
    assert run(CALLS[::3], REGISTERED_MEMORY="1") == []
    assert run(SUM, shows(), REGISTERED_MEMORY="1") != []


@pytest.mark.parametrize(
    "own",
    [
        {"COLLC_DIRECT": "0"},
        {"MOCK_NO_PEER": "all"},
        {"COLLC_PROTO": "LL"},
        {"COLLC_DIRECT": "0", "REGISTERED_MEMORY": "1"},
    ],
)
def test_else_chunks_pass_through_slots(own: dict[str, str]) -> None:
    """The user's wish, no peer access between the GPUs, another protocol."""
    assert run(SUM, shows(), None, "[0, 1, 2]", **own) == []


def test_libraries_without_that_lend_nothing() -> None:
    assert run(SUM, shows(), made=library()) == []
    assert [read_manifest(made).get("direct") for made in (direct(), library())] == [True, None]


def told(made: Path, **own: str) -> list[str]:
    """Returns the log lines of one process's ranks about their buffers at creation, in order."""
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
    log = []
    assert job("made", made=direct(), log=log, COLLC_DEBUG="INFO", COLLC_DIRECT_PROCESSES="1") == [True] * 3
    for rank, one in enumerate(log):
        others = ", ".join(str(peer) for peer in range(3) if peer != rank)
        assert f"rank {rank}: {read} {others}\n" in one
    log = []
    apart = {rank: {"MOCK_NO_PEER": "all", "COLLC_DEBUG": "INFO", **ABROAD} for rank in range(3)}
    assert job("made", made=direct(), log=log, own=apart) == [True] * 3
    assert [one.count(none) for one in log] == [1, 1, 1]


@pytest.mark.slow
def test_written_out_steps_run_where_nothing_can_be_lent() -> None:
    """Kernels that look for addresses give them up."""
    slow = written("odd-slow", SLOW_ODD)
    made = compiled_for_mock("odd-direct-written", slow, chunk_bytes=1024, direct=True, specialise=True)
    assert made.device is not None
    driver = mock_driver(code=made.device.written)
    settings = {"MOCK_GPUS": "3", "COLLC_PROTO": "Simple", "LD_LIBRARY_PATH": str(driver)}
    for peers, runs in ({}, 0), ({"MOCK_NO_PEER": "all"}, 3):
        answer = run_library(made.path, [[one] for one in SUM], [0, 1, 2], **settings, **peers)
        assert (answer["wrong"], answer["calls"]["written"]) == ([], runs)


SIMPLE = {"COLLC_PROTO": "Simple", **ABROAD}
# The program itself frees registered memory of cudaMalloc. After an abort, or without
# ncclCommDeregister, other processes may still have it open.
USER_FREES = {"MOCK_WITHOUT": "importers close before memory is freed"}
# Three processes with a GPU each: the memory that connects them, and restrictions on reading each other's buffers.
PLACES: dict[str, dict[str, str]] = {
    "file descriptors": {},
    "a pair over host memory": {"MOCK_NO_PEER": "0-1"},
    "a pair that maps nothing": {"MOCK_NO_VMM": "0-1"},
    "nobody maps anything": {"MOCK_VMM": "0"},
}


def processes(
    scenario: str,
    settings: dict[str, str] | None = None,
    *,
    given: dict[str, Any] | None = None,
    own: Machine | None = None,
    made: Path | None = None,
) -> list[Any]:
    """Returns the answers of three processes to a scenario over Simple; `own`: settings of single ranks."""
    may = USER_FREES if given and "plain" in given else {}
    each = {rank: {**SIMPLE, **may, **(settings or {}), **(own or {}).get(rank, {})} for rank in range(3)}
    return job(scenario, made=made or direct(), given=given, own=each, seconds=200)


@pytest.mark.parametrize("place", PLACES)
def test_every_collective_between_processes(place: str) -> None:
    assert processes("lent_collectives", PLACES[place]) == [[], [], []]


def test_every_collective_where_a_process_sees_its_gpu_alone() -> None:
    assert processes("lent_collectives", own=one_each()) == [[], [], []]


def from_slots(**settings: str) -> dict[str, str]:
    """Returns the settings of a driver whose kernels take every chunk from its slot."""
    return {"LD_LIBRARY_PATH": str(shows()), **settings}


def test_processes_read_buffers_where_they_stand() -> None:
    """Wrong results where a driver takes all from slots: at once behind windows, some time later without them."""
    assert all(processes("lent_collectives", from_slots()))
    assert processes("lent_without_windows", from_slots(), given={"turns": 5000}) == ["wrong"] * 3
    assert processes("lent_without_windows", given={"turns": 40}) == ["right"] * 3
    # A rank that lends nothing, by its user's wish, reads what others lend all the same.
    one = {0: {"COLLC_DIRECT": "0"}}
    assert any(processes("lent_collectives", from_slots(), own=one))
    assert processes("lent_collectives", own=one) == [[], [], []]


ELSE = [
    {"COLLC_DIRECT_PROCESSES": ""},
    {"COLLC_DIRECT": "0"},
    {"MOCK_NO_PEER": "all"},
    {"MOCK_VMM": "0"},
    {"COLLC_PROTO": "LL"},
]


def test_both_must_wish_it() -> None:
    """Rank 0 has no reader and reads nothing; the others read each other's."""
    one = {0: {"COLLC_DIRECT_PROCESSES": "0"}}
    assert processes("lent_collectives", own=one) == [[], [], []]
    log: list[str] = []
    own = {rank: {**SIMPLE, **one.get(rank, {}), "COLLC_DEBUG": "INFO"} for rank in range(3)}
    assert job("made", made=direct(), log=log, own=own) == [True] * 3
    said = [re.findall(r"rank \d: (?:buffers of ncclMemAlloc|no rank reads).*", one) for one in log]
    between = "buffers of ncclMemAlloc are read where they stand between it and rank(s)"
    assert said[0] == ["rank 0: no rank reads its buffers where they stand, nor it theirs"]
    assert said[1:] == [[f"rank 1: {between} 2"], [f"rank 2: {between} 1"]]


@pytest.mark.parametrize("own", ELSE)
def test_else_processes_read_slots(own: dict[str, str]) -> None:
    assert processes("lent_collectives", from_slots(**own)) == [[], [], []]


@pytest.mark.slow
def test_each_reader_has_an_address_of_its_own() -> None:
    """On a driver whose kernels take the address of the call's other buffer, results are wrong."""
    for fault in (NO_FAULT, "OTHER_BUFFER"):
        driver = {"LD_LIBRARY_PATH": str(mock_driver(fault=fault))}
        assert any(processes("lent_collectives", driver)) == (fault != NO_FAULT)


def test_graphs_of_processes_read_where_their_calls_were_lent() -> None:
    assert processes("lent_in_graphs") == [[], [], []]
    wrong = processes("lent_in_graphs", from_slots())
    assert all(wrong), wrong


@pytest.mark.parametrize("plain", [False, True])
def test_a_new_buffer_at_an_old_address_is_a_new_one(plain: bool) -> None:
    """And nothing of the old ones stays mapped."""
    given = {"turns": 9, "plain": plain}
    assert processes("freed_and_made_anew", {"MOCK_OLD_ADDRESSES": "1"}, given=given) == [[], [], []]


# Registered memory of cudaMalloc, which other processes have by IPC handles.
PLAIN = {"plain": True}


@pytest.mark.parametrize(
    "place",
    [{}, {"MOCK_NO_IPC": "0-1"}, *(pytest.param(one, marks=pytest.mark.slow) for one in PLACES.values() if one)],
)
def test_registered_memory_between_processes(place: dict[str, str]) -> None:
    assert processes("lent_collectives", place, given=PLAIN) == [[], [], []]


def test_processes_read_registered_memory_where_it_stands() -> None:
    """The processes exchange only IPC handles."""
    assert all(processes("lent_collectives", from_slots(), given=PLAIN))
    assert processes("lent_without_windows", from_slots(), given={"turns": 5000, **PLAIN}) == ["wrong"] * 3
    for own in {"MOCK_IPC": "0"}, {"COLLC_DIRECT_PROCESSES": ""}:
        assert processes("lent_collectives", from_slots(**own), given=PLAIN) == [[], [], []]


def test_registered_memory_that_is_freed_is_not_registered() -> None:
    """Wrong where a driver takes all from slots: what is registered, and nothing else."""
    again = {"MOCK_OLD_ADDRESSES": "1"}
    assert processes("freed_while_registered", again, given=PLAIN) == [[], [], []]
    found = processes("freed_while_registered", from_slots(**again), given=PLAIN)
    assert all(wrong == [f"turn {turn}" for turn in range(4)] for wrong in found), found


def test_what_else_becomes_of_registered_memory() -> None:
    assert processes("lent_in_graphs", given=PLAIN) == [[], [], []]
    assert processes("many_lent", given={"buffers": 60, **PLAIN}) == [[], [], []]
    assert processes("lent_and_split", given=PLAIN) == [[True] * 6] * 3
    assert processes("aborted_and_freed", given={"turns": 2, **PLAIN}) == [True] * 3
    assert processes("stopped_reader", given=PLAIN) == [True] * 3


@pytest.mark.slow
def test_an_answer_is_of_the_last_offer() -> None:
    assert processes("withdrawn_and_offered_again", made=for_parts(), given=PLAIN) == [[True] * 9] * 3


def test_a_killed_process_takes_no_registered_memory_with_it() -> None:
    first, _, third = processes("lent_and_killed", made=for_parts(), given=PLAIN)
    assert "rank 1 has died" in first
    assert "rank 1 has died" in third


def test_many_buffers() -> None:
    assert processes("many_lent", given={"buffers": 120}) == [[], [], []]


def test_parts_and_second_communicators_have_their_own() -> None:
    assert processes("lent_and_split") == [[True] * 6] * 3


def test_a_killed_process_takes_nothing_with_it() -> None:
    first, _, third = processes("lent_and_killed", made=for_parts())
    assert "rank 1 has died" in first
    assert "rank 1 has died" in third


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(same(), marks=pytest.mark.slow),
        one_each(MOCK_NO_IPC="0-2"),
        pytest.param(same(MOCK_NO_PEER="0-1"), marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow_for("machine1")
def test_jobs_and_habits_go_on_with_buffers_that_are_lent(machine: Machine) -> None:
    """All buffers come from ncclMemAlloc, and communicators are created and destroyed."""
    assert processes("random_jobs", given={"seeds": list(range(8))}, made=for_parts(), own=machine) == [[], [], []]
    answers = processes("habits", {"COLLC_BOOTSTRAP_TIMEOUT": "100"}, made=for_parts(), own=machine)
    assert answers == [dict.fromkeys(HABITS, True)] * 3, answers


def test_buffers_are_freed_behind_an_abort() -> None:
    assert processes("aborted_and_freed", given={"turns": 4}) == [True] * 3


@pytest.mark.parametrize("scenario", ["forked_while_lent", "descriptors_closed_while_lent", "stopped_reader"])
def test_what_processes_do_beside(scenario: str) -> None:
    assert processes(scenario) == [True] * 3


def test_memory_that_readers_hold_comes_back() -> None:
    """On the mock a buffer takes memory as long as any process has it mapped, as on a GPU."""
    given = {"turns": 4, "megabytes": 48}
    assert processes("memory_that_comes_back", {"MOCK_MEGABYTES": "80"}, given=given) == [True] * 3


def graphs(**own: str) -> list[Any]:
    """Returns the errors of graphs of three ranks, threads of one process, that overwrite their inputs at the end."""
    settings = {"MOCK_GPUS": "3", **SIMPLE, **own}
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
    assert job("forked_amid_frees", 1, made=direct(), given=given, own={0: ABROAD}) == [300]


def test_graphs_of_processes_on_two_streams() -> None:
    assert job("graphs_on_two_streams", made=direct(), own=dict.fromkeys(range(3), SIMPLE)) == [[True] * 4] * 3
