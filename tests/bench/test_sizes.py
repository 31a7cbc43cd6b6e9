"""Sizes that never end or fit no memory: one line from bench, tune and simulate, whatever the ranks are doing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cli import collc, refused
from support.libraries import library
from support.tunable import tunable

from collc.bench import gpus, worker
from collc.bench.meeting import Line
from collc.bench.memory import memory
from collc.bench.team import Team, _Joined, _Started
from collc.collectives.sizes import MOST_SIZES, size_series
from collc.errors import RunError, UsageError


def test_sizes_grow_by_a_factor_or_a_step() -> None:
    assert size_series(8, 100, 4) == [8, 32]
    assert size_series(0, 24, 1, 8) == [0, 8, 16, 24]
    assert size_series(1 << 40, 1 << 40, 2) == [1 << 40]
    assert len(size_series(1, MOST_SIZES, 1, 1)) == MOST_SIZES


@pytest.mark.parametrize(
    ("least", "most", "factor", "step", "said"),
    [
        (0, 64, 2, 0, "-b 0 cannot grow"),
        (8, 4, 2, 0, "-e 4 is below -b 8"),
        (-8, 64, 2, 0, "-e 64 is below -b -8"),
        (8, 64, 1, 0, "never end"),
        (8, 64, 0, 0, "-f 0"),
        (8, 900 << 40, 2, 0, "beyond 8 TiB"),
        (8, 1 << 30, 1, 1, "sizes are too many"),
    ],
)
def test_sizes_that_never_end_are_refused(least: int, most: int, factor: int, step: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        size_series(least, most, factor, step)


WRONG = [("-b", "0", "-e", "64"), ("-b", "64", "-e", "8"), ("-e", "9999G"), ("-b", "-8"), ("-f", "0"), ("-e", "1T")]


@pytest.mark.parametrize("options", WRONG, ids=" ".join)
@pytest.mark.parametrize("command", ["bench", "tune", "simulate"])
def test_every_command_refuses_them_in_one_line(command: str, options: list[str]) -> None:
    subject = "dgx1v" if command == "simulate" else library("pair")
    refused(collc(command, subject, *options), code=2)


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_buffers_beyond_the_machines_memory(command: str) -> None:
    line = refused(collc(command, library("pair"), "-b", "900G", "-e", "900G"), code=2)
    assert "the largest buffers of all ranks take 3865 GB, and this machine has" in line
    assert "choose a smaller -e" in line


def test_a_containers_memory_counts(tmp_path: Path) -> None:
    whole = memory(tmp_path / "none")
    limit = tmp_path / "memory.max"
    for text, held in (("1048576\n", 1 << 20), ("max\n", whole), (f"{1 << 60}\n", whole), ("\n", whole)):
        limit.write_text(text)
        assert memory(limit) == held


@pytest.mark.parametrize("name", ["bench", "tune"])
def test_a_rank_without_memory_says_so_in_one_line(tmp_path: Path, name: str) -> None:
    subject = str(library("pair") if name == "bench" else tunable())
    options = "--collective all_reduce -b 1G -e 1G" + ("" if name == "bench" else f" -o {tmp_path / 'out'}")
    limited = f'ulimit -v 1500000; exec "$0" -m collc {name} "$1" {options}'
    command = ["bash", "-c", limited, sys.executable, subject]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    line = done.stderr.strip()
    assert "no memory for its buffers: Unable to allocate" in line
    assert line.endswith("(choose a smaller -e)")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("error", "said", "hint"),
    [
        (MemoryError(), "no memory for its buffers", "choose a smaller -e"),
        (
            OSError(28, "No space left on device", "/dev/shm/x"),
            "/dev/shm/x: No space left on device",
            "`collc doctor` looks for causes",
        ),
        (RunError("bad", where="there", hint="do this"), "there: bad", "do this"),
        (RunError("bad"), "bad", None),
    ],
)
def test_every_worker_answers_what_fails(tmp_path: Path, error: Exception, said: str, hint: str | None) -> None:
    def fails(*_: object) -> Any:
        raise error

    answers: list[dict[str, Any]] = []
    worker.serve(tmp_path, [{"do": "id"}], answers.append, fails)
    gpus.serve(tmp_path, [{"do": "init", "nranks": 2}], answers.append, fails)
    assert answers == [{"error": said, "hint": hint}] * 2


def test_a_gpu_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = gpus.Driver.__new__(gpus.Driver)
    monkeypatch.setattr(driver, "lib", SimpleNamespace(cuMemAlloc_v2=lambda: 2), raising=False)
    with pytest.raises(RunError, match="choose a smaller -e"):
        driver("cuMemAlloc_v2")


def test_a_rank_that_fails_is_heard_while_another_waits_for_it() -> None:
    ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
    for connection in ours:
        connection.settimeout(5)
    team = Team([_Joined(Line(connection)) for connection in ours])
    theirs[1].sendall(json.dumps({"error": "no memory"}).encode() + b"\n")
    try:
        with pytest.raises(RunError, match="rank 1: no memory"):
            team.all({"do": "case"})
        theirs[0].sendall(b'{"a": 1}\n')
        theirs[1].sendall(b'{"a": 2}\n')
        assert team.receive_all() == [{"a": 1}, {"a": 2}]
    finally:
        team.end()
        for connection in theirs:
            connection.close()


def test_a_rank_that_was_killed_may_have_lacked_memory() -> None:
    rank = _Started(Path("none.so"), "collc.bench.worker")
    rank.process.kill()
    assert "status -9, killed perhaps for want of memory" in rank.fate()
    rank.end()
