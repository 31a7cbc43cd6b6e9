"""ncclCommGrow on the mock driver and over the host target: beyond one rank, twice in a row, after a split."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from mock_jobs import job
from test_cuda_runtime import compile_for_mock, written

from collc.compiler import CompileRequest, compile_topology
from collc.options import TargetKind

STAR = "format: collc-topology/1\nname: star\ngpus: 8\nswitches: [hub]\nlinks:\n" + "".join(
    f"  - [gpu{gpu}, hub, nvswitch, 50]\n" for gpu in range(8)
)
SERVED = "1..8"


@cache
def made(target: str) -> Path:
    """A library for 8 ranks behind a switch, and for some of them."""
    topology = written("star", STAR)
    if target == "cuda":
        return compile_for_mock("star-mock", topology, chunk_bytes=4096, allocations=SERVED, by_rule=True)
    out = topology.with_name("libcollc-star-host.so")
    compile_topology(CompileRequest(topology=str(topology), output=out, target=TargetKind.HOST, allocations=SERVED))
    return out


@pytest.mark.parametrize("target", ["cuda", "host"])
@pytest.mark.parametrize(
    "sizes", [[2, 4], [3, 8], [1, 3, 8], [2, 3, 4, 8]], ids=lambda sizes: "-".join(map(str, sizes))
)
def test_a_communicator_grows_and_grows_again(target: str, sizes: list[int]) -> None:
    answers = job("grows", sizes[-1], made=made(target), given={"sizes": sizes}, seconds=200)
    assert answers == [[True] * sum(rank < size for size in sizes) for rank in range(sizes[-1])]


@pytest.mark.parametrize("target", ["cuda", "host"])
def test_both_parts_of_a_split_communicator_grow(target: str) -> None:
    answers = job("split_and_grow", 8, made=made(target), seconds=200)
    assert answers == [[True] * 3] * 4 + [[True]] * 4
