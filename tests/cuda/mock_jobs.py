"""Starts jobs of mock_scenarios.py: a process per rank, each with a GPU of its own unless told otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from test_cuda_runtime import library, mock_driver

HERE = Path(__file__).parent


def job(
    scenario: str,
    nranks: int = 3,
    *,
    given: dict[str, Any] | None = None,
    seconds: float = 120,
    made: Path | None = None,
    own: dict[int, dict[str, str]] | None = None,
    log: list[str] | None = None,
    statuses: list[int] | None = None,
    within: tuple[str, ...] = (),
    spaces: Sequence[str] = (),
    **settings: str,
) -> list[Any]:
    """What each rank printed; "killed" for one that was still there after `seconds`, then for all.

    Args:
        own: settings of single ranks.
        log: takes what each rank wrote to its standard error.
        statuses: takes how each process ended.
        within: the command that starts each process.
        spaces: the network namespace of each rank.
    """
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(mock_driver()),
        "COLLC_BOOTSTRAP_TIMEOUT": "60",
        "OPENBLAS_NUM_THREADS": "1",
        "MOCK_GPUS": str(nranks),
        **settings,
    }
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(nranks):
            command = [
                *(["ip", "netns", "exec", spaces[rank]] if spaces else []),
                *within,
                sys.executable,
                str(HERE / "mock_scenarios.py"),
                str(made or library()),
                scenario,
                str(rank),
                str(nranks),
            ]
            command += [folder, json.dumps(given or {})]
            processes.append(
                subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**environment, **(own or {}).get(rank, {})},
                )
            )
        deadline = time.monotonic() + seconds
        answers: list[Any] = []
        for process in processes:
            try:
                out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                said = out.splitlines()
                if log is not None:
                    log.append(err)
                if statuses is not None:
                    statuses.append(process.returncode)
                answers.append(json.loads(said[-1]) if said else f"status {process.returncode}: {err[-1500:]}")
            except subprocess.TimeoutExpired:
                answers.append("killed")
        for process in processes:
            process.kill()
            process.communicate()
        return answers
