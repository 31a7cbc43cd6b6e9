"""Libraries whose calls several classes of links share, on the host target: all weights give the right result."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.cli import collc
from support.libraries import CUTS, client, library, run_client
from support.ranks import ranks

from collc.checker.library import check_library
from collc.errors import IRError, RunError
from collc.ir.interpret import cut_share
from collc.ir.nodes import Program

HERE = Path(__file__).parent
INVALID_USAGE = 5


@pytest.mark.parametrize(
    ("weights", "ways", "direct"),
    [
        (None, "processes", "1"),
        ("random:1", "processes", "1"),
        ("random:2", "thread", "0"),
        ("random:3", "threads", "1"),
        ("random:4", "processes", "0"),
        ("net:2,pcie:0", "threads", "0"),
    ],
)
def test_every_collective_and_type_for_any_weights(weights: str | None, ways: str, direct: str) -> None:
    """Random weights change from call to call, and leave a class out now and then."""
    settings = {"COLLC_DIRECT": direct} | ({"COLLC_WEIGHTS": weights} if weights else {})
    done = run_client([client(HERE / "client.c", "joint"), ways, "4"], settings=settings)
    assert int(done.stdout.split()[0]) > 1_000_000


def bits(weights: str, ways: str = "processes") -> str:
    program = client(HERE / "bits.c", "joint")
    settings = {**os.environ, "COLLC_WEIGHTS": weights}
    return subprocess.run([program, ways, "4"], capture_output=True, check=True, text=True, env=settings).stdout


def test_equal_weights_give_equal_bits() -> None:
    for weights in ("nvlink:3,pcie:1", "random:9"):
        assert len({bits(weights, ways) for ways in ("processes", "processes", "threads")}) == 1


def test_weights_decide_which_trees_carry_a_call() -> None:
    """Trees of other classes reduce in other orders, and sums of floats show it."""
    alone = bits("nvlink:1")
    assert bits("nvlink:7,pcie:0,net:0") == alone
    assert len({alone, bits("pcie:1"), bits("nvlink:1,pcie:1"), bits("random:4"), bits("random:5")}) == 5


@pytest.mark.parametrize(
    "value",
    [
        "nvlink",
        "nvlink:0",
        "nvlink:256",
        "nvlink:1,nvlink:1",
        "rail:1",
        "random:",
        "random:-1",
        "random:1,nvlink:1",
        "3,1",
    ],
)
def test_mistyped_weights_are_heard_of(value: str) -> None:
    program = client(HERE / "bits.c", "joint")
    settings = {**os.environ, "COLLC_WEIGHTS": value}
    done = subprocess.run([program, "threads", "4"], capture_output=True, text=True, check=False, env=settings)
    assert done.returncode == 1
    assert f"COLLC_WEIGHTS={value} is not weights as in nvlink:3,pcie:1" in done.stderr


def test_ranks_with_different_weights_are_told_so() -> None:
    with ranks(library("joint"), 4) as team:
        unique = team.ask(0, do="id")["id"]
        for rank in range(4):
            value = "nvlink:3,pcie:1" if rank < 2 else "random:6"
            team.ask(rank, do="environment", name="COLLC_WEIGHTS", value=value)
        for rank in range(4):
            team.tell(rank, do="init", nranks=4, id=unique, rank=rank)
        answers = [team.hear(rank) for rank in range(4)]
    assert {answer["result"] for answer in answers} == {INVALID_USAGE}
    said = "ranks 0 and 2 disagree: COLLC_WEIGHTS=nvlink:3,pcie:1 on the one, COLLC_WEIGHTS=random:6 on the other"
    assert all(said in answer["text"] for answer in answers)


def test_the_library_proves_its_classes_and_tells_their_weights() -> None:
    held = check_library(library("joint"))
    cut = [program for program in held.tables.allocations[0].programs if program.weights]
    assert {program.weights for program in cut} == {(3, 1, 0), (5, 2, 1)}
    assert len({program.collective for program in cut}) == 5
    rows = held.manifest["allocations"][0]["programs"]
    assert {json.dumps(row["weights"]) for row in rows} == {
        json.dumps({"nvlink": 3, "pcie": 1, "net": 0}),
        json.dumps({"nvlink": 5, "pcie": 2, "net": 1}),
    }
    assert all(row["why"] in {one.why for one in CUTS} for row in rows)
    shown = collc("inspect", str(library("joint")))
    assert shown.code == 0
    assert "all_reduce from 16384 bytes: for large calls" in shown.out


def test_weights_that_the_manifest_tells_wrong(tmp_path: Path) -> None:
    data = library("joint").read_bytes()
    told = b'"nvlink": 5'
    assert told in data
    path = tmp_path / "libcollc-joint.so"
    path.write_bytes(data.replace(told, b'"nvlink": 6', 1))
    with pytest.raises((IRError, RunError), match="what is loaded of it is not what was built"):
        check_library(path)


def test_programs_without_classes_take_no_weights() -> None:
    program = client(HERE / "bits.c", "odd")
    outputs = {
        subprocess.run([program, "threads", "3"], capture_output=True, check=True, env={**os.environ, **more}).stdout
        for more in ({}, {"COLLC_WEIGHTS": "pcie:1"}, {"COLLC_WEIGHTS": "random:3"})
    }
    assert len(outputs) == 1


def test_a_share_is_cut_alike_by_the_interpreter() -> None:
    """The programs that the library holds, for the weights that it has: every element is in one share of its block."""
    programs = [p for p in check_library(library("joint")).tables.allocations[0].programs if p.weights]
    assert programs
    for program in programs:
        covered(program, 5001)


def covered(program: Program, count: int) -> None:
    for block in {share.block for share in program.shares}:
        ranges = sorted(
            (found.begin, found.end)
            for s, share in enumerate(program.shares)
            if share.block == block and (found := cut_share(program, s, count, 4)).begin < found.end
        )
        ends = [0, *(end for _, end in ranges)]
        assert [begin for begin, _ in ranges] == ends[:-1]
        assert ends[-1] == count
