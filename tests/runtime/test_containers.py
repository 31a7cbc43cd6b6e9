"""Ranks in containers: what a process is called in one means another process, or none, in the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.libraries import library

RANK = Path(__file__).parent / "container_rank.py"
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")


def run(tmp_path: Path, extra: int, *how: str) -> list[list[str]]:
    """Returns the output of two ranks, which must end well."""
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("no right to make namespaces of processes")
    command = [*NAMESPACE, sys.executable, str(RANK), str(library("pair"))]
    job = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / f"id{extra}"), str(extra * rank), *how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=60) for process in job]
        for process, (_, err) in zip(job, said, strict=True):
            assert process.returncode == 0, f"{extra} more descriptors: {err}"
        return [out.split() for out, _ in said]
    finally:
        for process in job:
            process.kill()


def test_ranks_that_are_each_process_one_of_their_container(tmp_path: Path) -> None:
    # For some `extra`, the descriptor number of one rank's buffer equals the number of the other's shared segment.
    for extra in range(8):
        assert run(tmp_path, extra) == [["1", str(extra * rank)] for rank in range(2)]


def test_a_death_in_another_container_is_noticed(tmp_path: Path) -> None:
    assert run(tmp_path, 0, "dies") == [["1", "0"], []]
