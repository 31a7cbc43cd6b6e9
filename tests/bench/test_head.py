"""`collc bench` says at once what it will measure on which devices, before any rank has started."""

from __future__ import annotations

from typing import Any

import pytest
from support.cli import collc, refused
from support.libraries import library

from collc.bench.table import HEADER, devices
from collc.errors import RunError


def test_the_head_comes_before_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def unstarted(*_: object) -> Any:
        raise RunError("nothing was started")

    monkeypatch.setattr("collc.cli.bench.run_bench", unstarted)
    path = library("pair")
    result = collc("bench", path, "-b", "8", "-e", "1K", "--collective", "all_reduce")
    assert refused(result) == "collc: nothing was started"
    lines = result.out.splitlines()
    assert lines[:4] == [
        "# minBytes 8 maxBytes 1024 step: 4(factor)",
        "# Using devices",
        "#  Rank  0: gpu0, a process on CPUs",
        "#  Rank  1: gpu1, a process on CPUs",
    ]
    assert lines[4].startswith(f"# all_reduce: {path}, 2 ranks, one process each; iters 20")
    assert "\n".join(lines[5:]) == HEADER
    assert collc("bench", path, "-e", "8", "-i", "16", "-f", "1").out.startswith(
        "# minBytes 8 maxBytes 8 step: 16(bytes)"
    )


def one(nranks: int, **keys: object) -> dict[str, Any]:
    return {"nranks": nranks, "gpus": [f"gpu{i}" for i in range(nranks)], "servers": ["s0"] * nranks, **keys}


def test_devices_of_several_servers_and_of_several_sets() -> None:
    both: dict[str, Any] = {"target": "cuda", "allocations": [one(2, servers=["s0", "s1"])]}
    assert devices(both, None) == ["Rank  0: s0: gpu0, a GPU", "Rank  1: s1: gpu1, a GPU"]
    sets: dict[str, Any] = {"target": "host", "allocations": [one(2), one(3), one(2)]}
    assert devices(sets, 3) == [f"Rank  {i}: gpu{i}, a process on CPUs" for i in range(3)]
    (line,) = devices(sets, 2)
    assert "COLLC_GPUS" in line
    assert "one of 2" in line
