"""The processes of a benchmark's ranks, started here or by a launcher."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from collc.bench.launchers import Place
from collc.bench.meeting import Line, gather
from collc.errors import RunError, visible
from collc.network.ucx import wheel_setting
from collc.process import python_module, safe_environment


class _Rank(Protocol):
    """A connection to the worker of one rank (collc.bench.worker).

    `at` is " at ADDRESS" if the rank is on another machine, else empty.
    """

    at: str

    def send(self, order: dict[str, Any]) -> None:
        """Sends an order. Raises OSError if the worker is gone."""

    def receive(self) -> dict[str, Any] | None:
        """Returns the worker's next answer; None if it is gone."""

    def fileno(self) -> int:
        """Returns a descriptor that is readable if an answer has come or the worker is gone."""

    def fate(self) -> str:
        """Returns the reason why the worker ended."""

    def end(self) -> None:
        """Ends the worker immediately."""


class _Started:
    """A worker that this process started."""

    at = ""

    def __init__(self, library: Path, worker: str) -> None:
        command = python_module(worker, str(library))
        # numpy in the workers needs no threads, because ranks already run in parallel.
        environment = {**safe_environment(), **wheel_setting(os.environ), "OMP_NUM_THREADS": "1"}
        environment["OPENBLAS_NUM_THREADS"] = "1"
        pipe = subprocess.PIPE
        with signals_later():
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", env=environment
            )
        self.relay = threading.Thread(target=self._relay, daemon=True)
        self.relay.start()

    def _relay(self) -> None:
        """Copies stderr of the worker and its library to stderr here, without control characters for terminals."""
        assert self.process.stderr is not None
        with suppress(ValueError, OSError):
            while line := self.process.stderr.readline(4096):
                sys.stderr.write(visible(line, keep="\n\t"))
                sys.stderr.flush()

    def send(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else None

    def fileno(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def fate(self) -> str:
        status = self.process.wait(10)
        killed = ", killed perhaps for want of memory: choose a smaller -e" if status == -signal.SIGKILL else ""
        return f"the rank ended with status {status}{killed}"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        # Waits for the rest of the output, unless another process has the pipe open.
        self.relay.join(1)
        for pipe in (self.process.stdin, self.process.stdout, None if self.relay.is_alive() else self.process.stderr):
            if pipe:
                with suppress(BrokenPipeError):
                    pipe.close()


@contextmanager
def signals_later() -> Iterator[None]:
    """Delays Ctrl-C and SIGTERM while a process is started, until this process can end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Joined:
    """A worker in a process that a launcher started."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.at = line.at
        self.send, self.receive, self.end = line.send, line.receive, line.close
        self.fileno = line.connection.fileno

    def fate(self) -> str:
        return "the rank ended"


class Team:
    """The workers of all ranks, by rank."""

    def __init__(self, ranks: list[_Rank]) -> None:
        self.ranks = ranks
        self.serves: dict[str, Any] = {}  # rank 0's answer about its communicator
        self.machines = 1

    def send(self, rank: int, order: dict[str, Any]) -> None:
        try:
            self.ranks[rank].send(order)
        except OSError:
            raise RunError(self.ranks[rank].fate(), where=self._where(rank)) from None

    def receive(self, rank: int) -> dict[str, Any]:
        answer = self.ranks[rank].receive()
        if answer is None:
            raise RunError(self.ranks[rank].fate(), where=self._where(rank))
        if "error" in answer:
            where = self._where(rank) if len(self.ranks) > 1 else None
            raise RunError(answer["error"], where=where, hint=answer.get("hint"))
        return answer

    def _where(self, rank: int) -> str:
        return f"rank {rank}{self.ranks[rank].at}"

    def one(self, rank: int, order: dict[str, Any]) -> dict[str, Any]:
        self.send(rank, order)
        return self.receive(rank)

    def all(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        for rank in range(len(self.ranks)):
            self.send(rank, order)
        return self.receive_all()

    def receive_all(self) -> list[dict[str, Any]]:
        """Returns an answer of each rank. They are read in any order, so that the error of a rank is seen at once."""
        answers: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for number, rank in enumerate(self.ranks):
                selector.register(rank.fileno(), selectors.EVENT_READ, number)
            while len(answers) < len(self.ranks):
                for key, _ in selector.select():
                    answers[key.data] = self.receive(key.data)
                    selector.unregister(key.fileobj)
        return [answers[number] for number in range(len(self.ranks))]

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()


class GpuTeam:
    """All ranks in one process (collc.bench.gpus)."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.serves: dict[str, Any] = {}
        self.machines = 1

    def all(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        return list(self.team.one(0, order)["ranks"])

    def one(self, rank: int, order: dict[str, Any]) -> dict[str, Any]:
        return self.all(order)[rank]


@contextmanager
def gpu_team_of(library: Path, nranks: int, worker: str = "collc.bench.gpus") -> Iterator[GpuTeam]:
    """Yields ranks with a communicator on this machine's GPUs, and ends them afterwards.

    Args:
        worker: the module that runs the ranks.

    Raises:
        RunError: there is no GPU, or a rank failed.
    """
    team = Team([_Started(library, worker)])
    try:
        gpus = GpuTeam(team)
        gpus.serves = (gpus.all({"do": "init", "nranks": nranks}) or [{}])[0]
        yield gpus
        gpus.all({"do": "close"})
    finally:
        team.end()


@contextmanager
def team_of(library: Path, nranks: int, place: Place | None, worker: str = "collc.bench.worker") -> Iterator[Team]:
    """Yields ranks with a communicator, and ends all of them afterwards.

    Without a launcher every rank is a process that is started here. With a launcher, this process is its rank 0 and
    starts the worker of rank 0, and the other ranks connect to it.

    Args:
        worker: the module that a rank runs.

    Raises:
        RunError: a rank failed, died or did not come.
    """
    team = Team([])
    try:
        others = [] if place is None else gather(place)
        for _ in range(nranks - len(others)):
            team.ranks.append(_Started(library, worker))
        team.ranks += map(_Joined, others)
        unique = team.one(0, {"do": "id"})["id"]
        for rank in range(nranks):
            team.send(rank, {"do": "init", "id": unique, "rank": rank, "nranks": nranks})
        told = team.receive_all()
        team.serves, team.machines = told[0], len({one.get("machine") for one in told})
        yield team
        team.all({"do": "close"})
    finally:
        team.end()
