"""Processes of ranks under a test's control."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.netlab import inside as in_server

_PROGRAM = Path(__file__).parent.parent / "runtime" / "rank_process.py"

SUCCESS, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 0, 2, 3, 4, 5, 6


class Ranks:
    """One process per rank; `tell` sends an order, `hear` waits for its answer.

    Args:
        hosts: a letter for each rank: ranks with equal letters are on one machine, as far as the library can tell.
        lab: the name of a lab whose servers have these letters (`support.netlab`).
        own: variables of single ranks.
        inside: what starts each of them, in its server's namespace.
    """

    def __init__(
        self,
        library: Path,
        nranks: int,
        environment: dict[str, str],
        program: Path = _PROGRAM,
        hosts: str = "",
        lab: str = "",
        own: Mapping[int, Mapping[str, str]] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        self.hosts = hosts
        # Rank programs of other targets import the one of the host target.
        path = os.pathsep.join(filter(None, [str(_PROGRAM.parent), os.environ.get("PYTHONPATH")]))
        self.processes = [
            subprocess.Popen(
                [
                    *(in_server(lab, hosts[rank]) if lab else []),
                    *inside,
                    *(sys.executable, str(program), str(library)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "OPENBLAS_NUM_THREADS": "1",
                    "PYTHONPATH": path,
                    **({"COLLC_HOSTID": hosts[rank]} if hosts else {}),
                    **environment,
                    **((own or {}).get(rank, {})),
                },
            )
            for rank in range(nranks)
        ]

    def tell(self, to: int, /, **order: Any) -> None:
        pipe = self.processes[to].stdin
        assert pipe is not None
        pipe.write(json.dumps(order) + "\n")
        pipe.flush()

    def hear(self, rank: int, timeout: float = 150) -> dict[str, Any]:
        pipe = self.processes[rank].stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], timeout)
        assert ready, f"rank {rank} did not answer within {timeout} s"
        line = pipe.readline()
        assert line, f"rank {rank} ended with status {self.processes[rank].wait(10)}"
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def ask(self, to: int, /, **order: Any) -> dict[str, Any]:
        self.tell(to, **order)
        return self.hear(to)

    def all(self, ranks: list[int] | None = None, **order: Any) -> list[dict[str, Any]]:
        chosen = list(range(len(self.processes))) if ranks is None else ranks
        for rank in chosen:
            self.tell(rank, **order)
        return [self.hear(rank) for rank in chosen]

    def init(self) -> list[dict[str, Any]]:
        unique = self.ask(0, do="id")["id"]
        for rank in range(len(self.processes)):
            self.tell(rank, do="init", nranks=len(self.processes), id=unique, rank=rank)
        return [self.hear(rank) for rank in range(len(self.processes))]

    def signal(self, rank: int, number: signal.Signals) -> None:
        self.processes[rank].send_signal(number)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()


@contextmanager
def ranks(library: Path, nranks: int, **environment: str) -> Iterator[Ranks]:
    """Starts the processes and ends them, whatever happens."""
    team = Ranks(library, nranks, environment)
    try:
        yield team
    finally:
        team.close()
