"""The TCP ports that a process has open, by the sockets that it holds: in its own network namespace."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from pathlib import Path

from support.ranks import Ranks

_LISTENING = "0A"


def free_port() -> int:
    """One that nobody has, and that the system gives nobody before it is used: from below its own range."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    for port in random.sample(range(max(1025, first // 2), first), 100):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("100 ports are taken")


def ports_of(process: int) -> set[int]:
    """Returns the TCP ports at which a process listens."""
    held = set()
    for one in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(os.readlink(one))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTENING and f"socket:[{words[9]}]" in held:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


def ports_in_the_end(team: Ranks, counts: list[int]) -> list[set[int]]:
    """Waits until each process listens at `counts` ports. The id's listener closes a second after a creation."""
    deadline = time.monotonic() + 60
    while True:
        ports = [ports_of(process.pid) for process in team.processes]
        if [len(of_rank) for of_rank in ports] == counts:
            return ports
        assert time.monotonic() < deadline, f"{ports}, not {counts}"
        time.sleep(0.05)
