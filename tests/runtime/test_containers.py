"""Ranks in containers: what a process is called in one means another process, or none, in the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.libraries import library

RANK = Path(__file__).parent / "container_rank.py"
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")


def test_ranks_that_are_each_process_one_of_their_container(tmp_path: Path) -> None:
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("no right to make namespaces of processes")
    # With some number of descriptors, the buffer that one rank offers has the number of the other's shared segment.
    for extra in range(8):
        command = [*NAMESPACE, sys.executable, str(RANK), str(library("pair"))]
        job = [
            subprocess.Popen(
                [*command, str(rank), str(tmp_path / f"id{extra}"), str(extra * rank)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            for rank, process in enumerate(job):
                out, err = process.communicate(timeout=60)
                assert process.returncode == 0, f"{extra} more descriptors: {err}"
                assert out.split() == ["1", str(extra * rank)]
        finally:
            for process in job:
                process.kill()
