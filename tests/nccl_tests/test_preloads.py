"""The stand-in for CUDA and the check of every call, with calls like those in nccl-tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from preloads import HERE, counts, cuda_runtime, environment
from support.libraries import client, library


def run(folder: Path, how: str, ranks: int, machine: str, *before: str) -> subprocess.CompletedProcess[str]:
    program = client(HERE / "calls.c", machine, cuda_runtime())
    settings = environment(folder, library(machine), *before)
    return subprocess.run(
        [program, how, str(ranks)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **settings},
    )


@pytest.mark.parametrize(("machine", "ranks"), [("odd", 3), ("dgx1v", 8)])
@pytest.mark.parametrize("how", ["gpus", "threads"])
def test_every_call_leaves_what_it_must(tmp_path: Path, how: str, machine: str, ranks: int) -> None:
    done = run(tmp_path, how, ranks, machine, "checked_calls.c")
    assert done.returncode == 0, done.stderr
    total = counts(tmp_path)
    assert total["wrong"] == 0, done.stderr
    assert total["regions"] == 4 * ranks * ranks + 174 * ranks + 22
    # Two of the 132 calls exchange in place: each rank's blocks to and from all ranks, and one block out and one in.
    assert total["skipped"] == ranks * (2 * ranks + 2)


@pytest.mark.parametrize("how", ["gpus", "threads"])
def test_a_wrong_byte_is_seen(tmp_path: Path, how: str) -> None:
    done = run(tmp_path, how, 3, "odd", "checked_calls.c", "planted_fault.c")
    assert done.returncode == 0, done.stderr
    # One element of each rank's 2 x 20 all-reduces and of its message out of place.
    assert counts(tmp_path)["wrong"] == 3 * (2 * 20 + 1)
    assert "1 of 1003 wrong, the first is 1002" in done.stderr
