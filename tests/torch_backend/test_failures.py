"""Nothing fails silently over the collc backend: refused calls, timeouts, and the death of a rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

from torch_backend.launch import (  # noqa: E402
    HERE,
    SECONDS,
    environment,
    forked,
    mpirun_command,
    torchrun_command,
)

KINDS = ["all_reduce", "ddp", "fsdp", "pipeline"]
SIGKILL = -9


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.slow_for("3")
def test_what_cannot_be_right_is_refused_with_its_reason(ranks: int) -> None:
    assert "all right" in forked(ranks, "refusals.py")


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.slow_for("3")
def test_sends_and_receives(ranks: int) -> None:
    assert "all right" in forked(ranks, "point_to_point.py")


def expected(kind: str, rank: int) -> list[float]:
    """The three results before the death, as one process computes them."""
    if kind == "all_reduce":
        return [0.0, 3.0, 6.0]
    if kind == "pipeline":
        return [number + rank + 1.0 for number in range(3)]
    from torch_backend.death import network, training

    step = training(network())
    return [step(number) for number in range(3)]


def survivors(folder: Path) -> dict[int, dict[str, Any]]:
    return {int(file.stem.partition("-")[2]): json.loads(file.read_text()) for file in folder.glob("rank-*.json")}


def check(kind: str, found: dict[int, dict[str, Any]]) -> None:
    for rank, told in found.items():
        assert told["seconds"] < 20, told  # not one of the time limits
        assert told["results"] == pytest.approx(expected(kind, rank), rel=1e-5), "a wrong number"
        assert "rank" in told["error"]


@pytest.fixture(scope="module", params=["one machine", pytest.param("two machines", marks=pytest.mark.slow)])
def without_launcher(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The outcomes of three ranks, one of them killed: a folder for each kind of program and each victim."""
    folder = tmp_path_factory.mktemp("plain")
    hosts = "aab" if request.param == "two machines" else ""
    command = [sys.executable, "-W", "ignore", str(HERE / "death.py"), "plain", str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment(RANK_HOSTS=hosts)
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_every_survivor_of_a_killed_rank_raises(kind: str, victim: int, without_launcher: Path) -> None:
    folder = without_launcher / f"{kind}-{victim}"
    assert json.loads((folder / "codes").read_text()) == [SIGKILL if rank == victim else 3 for rank in range(3)]
    found = survivors(folder)
    assert sorted(found) == [rank for rank in range(3) if rank != victim]
    check(kind, found)


SLOW_KINDS = [kind if kind == "all_reduce" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("mpirun", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", SLOW_KINDS)
@pytest.mark.slow_for("all_reduce-torchrun")
def test_under_a_launcher_survivors_raise_or_are_ended(kind: str, launcher: str, tmp_path: Path) -> None:
    command = torchrun_command(3) if launcher == "torchrun" else mpirun_command(3)
    meeting = {} if launcher == "torchrun" else {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        [*command, str(HERE / "death.py"), kind, "1", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment(**meeting),
    )
    assert (tmp_path / "died").is_file(), done.stderr[-2000:]
    assert done.returncode != 0
    check(kind, survivors(tmp_path))
