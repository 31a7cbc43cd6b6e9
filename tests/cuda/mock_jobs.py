"""Starts jobs of mock_scenarios.py: a process per rank, each with a GPU of its own unless told otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from test_cuda_runtime import library, mock_driver

HERE = Path(__file__).parent
BEGINNING = ("LD_", "PYTHON", "OPENBLAS", "GLIBC", "MALLOC")


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
    """Returns the output of each rank; "killed" for a rank that still ran after `seconds`, and then for all ranks.

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
    mine = [(own or {}).get(rank, {}) for rank in range(nranks)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            [str(made or library()), scenario, str(rank), str(nranks), folder, json.dumps(given or {})]
            for rank in range(nranks)
        ]
        # A forked process cannot receive settings that a process reads only when it starts.
        if within or spaces or any(name.startswith(BEGINNING) for one in mine for name in one):
            ended = _started(arguments, environment, mine, within, spaces, seconds)
        else:
            ended = _forked(Path(folder), arguments, environment, mine, seconds)
    answers: list[Any] = []
    for one in ended:
        if one is None:
            answers.append("killed")
            continue
        said = one.out.splitlines()
        if log is not None:
            log.append(one.err)
        if statuses is not None:
            statuses.append(one.status)
        answers.append(json.loads(said[-1]) if said else f"status {one.status}: {one.err[-1500:]}")
    return answers


class Ended(NamedTuple):
    """How a rank ended, and its output."""

    status: int
    out: str
    err: str


def _forked(
    folder: Path,
    arguments: list[list[str]],
    environment: dict[str, str],
    own: Sequence[dict[str, str]],
    seconds: float,
) -> list[Ended | None]:
    """Ranks that one process forks off; None for those that it had to kill."""
    ranks = json.dumps(list(zip(arguments, own, strict=True)))
    command = [sys.executable, str(HERE / "mock_forks.py"), str(folder), ranks]
    deadline = time.monotonic() + seconds
    found: dict[int, int] = {}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        killer = threading.Timer(seconds, stdin.close)
        killer.start()
        try:
            for line in stdout:
                if time.monotonic() < deadline:
                    rank, status = map(int, line.split())
                    found[rank] = status
        finally:
            killer.cancel()
        assert process.wait() == 0, (errors.seek(0), errors.read())[1]

    def text(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8", errors="replace")

    return [
        Ended(found[rank], text(f"out-{rank}"), text(f"err-{rank}")) if rank in found else None
        for rank in range(len(arguments))
    ]


def _started(
    arguments: list[list[str]],
    environment: dict[str, str],
    own: Sequence[dict[str, str]],
    within: tuple[str, ...],
    spaces: Sequence[str],
    seconds: float,
) -> list[Ended | None]:
    """Ranks that are started one by one; None for those that were there for too long."""
    processes = []
    for rank, its in enumerate(arguments):
        command = ["ip", "netns", "exec", spaces[rank]] if spaces else []
        command += [*within, sys.executable, str(HERE / "mock_scenarios.py"), *its]
        processes.append(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**environment, **own[rank]},
            )
        )
    deadline = time.monotonic() + seconds
    ended: list[Ended | None] = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            ended.append(Ended(process.returncode, out, err))
        except subprocess.TimeoutExpired:
            ended.append(None)
    for process in processes:
        process.kill()
        process.communicate()
    return ended
