"""Counts the ranks that have connected to the listener of an id, from the sockets of its process."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from support.ranks import Ranks

_CONNECTED = "03"


def wait_for_ranks(team: Ranks, listener: int, count: int) -> None:
    """Waits until `count` ranks of this machine are connected to the listener in the process of rank `listener`."""
    process, deadline = team.processes[listener].pid, time.monotonic() + 60
    while (now := _connections(process)) < count:
        assert time.monotonic() < deadline, f"{now} of {count} ranks have come"
        time.sleep(0.01)
    time.sleep(0.2)  # their hello follows the connection


def _connections(process: int) -> int:
    """Returns the number of connected local sockets that accept() has returned for the process's named listeners."""
    held = set()
    for one in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(os.readlink(one))
    rows = [line.split() for line in Path(f"/proc/{process}/net/unix").read_text().splitlines()[1:]]
    return sum(
        len(row) == 8 and row[5] == _CONNECTED and row[7].startswith("@collc:") and f"socket:[{row[6]}]" in held
        for row in rows
    )
