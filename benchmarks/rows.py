"""Rows of a benchmark. Each row is measured in a new process and kept on disk, so that an ended run continues."""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOT_MEASURED = ["not measured"]


class Rows:
    """Rows by name.

    Args:
        path: where they are kept, one JSON list per line: name, then cells. None keeps none.
        limit: seconds of CPU time that any one may take.
        measure: False takes only kept rows; the other rows state that they are not measured.
    """

    def __init__(self, path: Path | None, limit: float, *, measure: bool = True) -> None:
        self._path, self._limit, self._measure = path, limit, measure
        lines = path.read_text("utf-8").splitlines() if path is not None and path.exists() else []
        self._kept: dict[str, list[str]] = {name: cells for name, *cells in map(json.loads, lines)}

    def keeps(self, name: str) -> bool:
        """Returns whether an earlier run measured that row."""
        return name in self._kept

    def get(self, name: str, work: Callable[[], list[str]], limit: float | None = None) -> list[str]:
        """The row of that name: what `work` returns, unless an earlier run did; a failure is said but not kept."""
        if name not in self._kept and not self._measure:
            return NOT_MEASURED
        if name not in self._kept:
            print(name, file=sys.stderr, flush=True)
            cells = measured(work, limit or self._limit)
            if cells and cells[0].startswith("failed: "):
                return cells
            self._kept[name] = cells
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([name, *cells]) + "\n")
        return self._kept[name]


def measured(work: Callable[[], list[str]], limit: float) -> list[str]:
    """Returns the result of `work` from a forked process, or one cell with the error or the exceeded limit."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(work, theirs, limit))
    process.start()
    theirs.close()
    try:
        answer: Any = ours.recv()
        return list(answer)
    except EOFError:
        return [f"over {limit:.0f} s"]
    finally:
        process.join()


def _answer(work: Callable[[], list[str]], pipe: Any, limit: float) -> None:
    # The system ends the process when it has used so much CPU time.
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
    try:
        pipe.send(work())
    except Exception as error:
        pipe.send([f"failed: {error}"])
