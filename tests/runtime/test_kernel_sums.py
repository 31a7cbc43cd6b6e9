"""Inputs of sums that the kernel copies into their reader's memory: right in place too, with no bit changed."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest
from support.libraries import client, library, shared_library
from support.ranks import REMOTE_ERROR, SUCCESS, Ranks

from collc.checker.library import read_manifest
from collc.tune.machine import DISTANCES, Thresholds, machine_text, tune_machine

HERE = Path(__file__).parent
BY_SLOTS: dict[str, str] = {}  # hashes, by processes and by threads
NEVER = Thresholds(*[None] * len(fields(Thresholds)))
EVERYWHERE = replace(NEVER, sums_everywhere=1)
HALVES = replace(NEVER, kernel_sums=1)
PAST = replace(NEVER, streamed_slots=1, streamed_results=1)
BORDERS = replace(NEVER, sums_everywhere=1 << 16, sums_everywhere_end=1 << 18)
# Both ranks need a core, or nothing goes this way.
free_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tune_machine(library("twin"), tmp_path_factory.mktemp("machine") / "machine.txt").machine


def file_of(machine: str, folder: Path, found: Thresholds) -> str:
    file = folder / "thresholds.txt"
    file.write_text(machine_text(machine, platform.release(), {}, dict.fromkeys(DISTANCES, found)))
    return str(file)


def run(way: str, what: str, file: str, **settings: str) -> tuple[str, list[list[str]]]:
    """The hash of all results, and the lines about copies."""
    command = [str(client(HERE / "sums.c", "twin")), way, what]
    environment = {**os.environ, "COLLC_MACHINE": file, **settings}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line.split() for line in done.stderr.splitlines()]


def copies(machine: str, folder: Path) -> bool:
    """Returns whether this system lets the kernel copy between processes."""
    return run("processes", "borders", file_of(machine, folder, EVERYWHERE))[1][-1] != ["copies", "0"]


def all_by_slots(machine: str, folder: Path, way: str) -> str:
    """The hashes of all results without copies by the kernel, from one run for all tests."""
    if way not in BY_SLOTS:
        hashed, lines = run(way, "all", file_of(machine, folder, NEVER))
        assert lines == [["copies", "0"]]
        BY_SLOTS[way] = hashed
    return BY_SLOTS[way]


@pytest.mark.parametrize("found", [EVERYWHERE, HALVES, PAST], ids=["everywhere", "halves", "past the caches"])
@pytest.mark.parametrize("way", ["processes", "threads"])
@pytest.mark.slow_for("processes-everywhere")
def test_every_type_and_operation_gets_the_bits_that_slots_give(
    machine: str, tmp_path: Path, way: str, found: Thresholds
) -> None:
    expected = all_by_slots(machine, tmp_path, way)
    result, lines = run(way, "all", file_of(machine, tmp_path, found))
    assert result == expected
    if way == "threads" or found == PAST:
        assert lines == [["copies", "0"]]


@free_cores
@pytest.mark.parametrize("late", ["0", "1"])
def test_a_rank_stores_nothing_over_what_the_other_has_yet_to_fetch(machine: str, tmp_path: Path, late: str) -> None:
    if not copies(machine, tmp_path):
        pytest.skip("the kernel copies nothing here")
    expected, _ = run("processes", "borders", file_of(machine, tmp_path, NEVER))
    result, lines = run("processes", "borders", file_of(machine, tmp_path, EVERYWHERE), SUMS_LATE=late)
    assert result == expected
    assert int(lines[-1][1]) > 0


@free_cores
def test_the_range_begins_and_ends_where_the_file_says(machine: str, tmp_path: Path) -> None:
    if not copies(machine, tmp_path):
        pytest.skip("the kernel copies nothing here")
    _, lines = run("processes", "borders", file_of(machine, tmp_path, BORDERS))
    assert [int(size) for size, count in lines[:-1] if count != "0"] == [65536, 65544, 70008, 131080, 262136]


@free_cores
def test_the_range_changes_the_table_of_programs_unless_a_file_has_replaced_it(machine: str, tmp_path: Path) -> None:
    if not copies(machine, tmp_path):
        pytest.skip("the kernel copies nothing here")
    manifest = read_manifest(library("twin"))
    programs = manifest["allocations"][0]["programs"]
    sums = [i for i, p in enumerate(programs) if (p["collective"], p["root"]) == ("all_reduce", None)]
    everywhere = [i for i in sums if programs[i]["everywhere"]]
    large = next(i for i in sums if i not in everywhere)

    def chosen(way: str, found: Thresholds, **settings: str) -> dict[int, int]:
        lines = run(way, "programs", file_of(machine, tmp_path, found), **settings)[1][:-1]
        return {int(size): int(program) for size, program in lines}

    embedded = chosen("processes", NEVER)
    assert embedded[262136] not in everywhere
    inside = dict.fromkeys((65536, 65544, 70008, 131080, 262136), everywhere[0])
    assert chosen("processes", BORDERS) == embedded | inside
    assert chosen("threads", BORDERS) == embedded
    assert chosen("processes", BORDERS, COLLC_DIRECT="0") == embedded
    assert chosen("processes", BORDERS, COLLC_PROTO="Simple") == embedded
    tuning = tmp_path / "tuning.txt"
    rows = ["table 0 all_reduce -", f"0 {large}", "end 1"]
    tuning.write_text(
        "\n".join(["collc-tuning/1", f"library {manifest['build_id']}", f"machine {machine}", *rows]) + "\n"
    )
    assert set(chosen("processes", BORDERS, COLLC_TUNING=str(tuning)).values()) == {large}


def test_where_the_kernel_refuses_slots_serve(machine: str, tmp_path: Path) -> None:
    expected, _ = run("processes", "borders", file_of(machine, tmp_path, NEVER))
    refused = run("processes", "borders", file_of(machine, tmp_path, EVERYWHERE), SUMS_REFUSE="1")
    assert (refused[0], refused[1][-1]) == (expected, ["copies", "0"])


@free_cores
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_rank_that_comes_to_harm_amid_a_copy(machine: str, tmp_path: Path, how: str) -> None:
    if not copies(machine, tmp_path):
        pytest.skip("the kernel copies nothing here")
    preload = {"LD_PRELOAD": str(shared_library(HERE / "hold_up.c"))}
    file = file_of(machine, tmp_path, EVERYWHERE)
    team = Ranks(library("twin"), 2, {"COLLC_MACHINE": file, **preload})
    try:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 2
        team.ask(1, do="environment", name="HOLD_UP", value=f"fetch:{how}")
        for rank in range(2):
            team.tell(rank, do="call", count=500_000)
        if how == "kill":
            answer = team.hear(0)
            assert answer["result"] == REMOTE_ERROR
            assert "rank 1" in answer["text"]
            assert team.processes[1].wait(60) == -signal.SIGKILL
            return
        _, status = os.waitpid(team.processes[1].pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        team.signal(1, signal.SIGCONT)
        assert [team.hear(rank)["result"] for rank in range(2)] == [SUCCESS] * 2
    finally:
        team.close()
