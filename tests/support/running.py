"""Asks `collc status` about a process of a test."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support.cli import collc

# Seconds: only a test that fails waits so long.
WAIT = 120.0


def status(process: int) -> dict[str, Any]:
    """The one communicator of a process."""
    found = collc("status", process, "--json")
    assert found.code == 0, found
    (communicator,) = json.loads(found.out)["communicators"]
    assert isinstance(communicator, dict)
    return communicator


def until(process: int, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Waits until `holds` is true for the status of a process, and returns the status."""
    end = time.monotonic() + WAIT
    while not holds(found := status(process)):
        assert time.monotonic() < end, json.dumps(found, indent=1)
        time.sleep(0.05)
    return found


@contextmanager
def stranger() -> Iterator[int]:
    """A process of this user that has no communicator; the process of the tests may have some, left by other tests."""
    with subprocess.Popen(["sleep", "infinity"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()
