"""Resources that a communicator leaves behind, in its processes and in the namespaces of a lab's servers."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from support.netlab import Lab
from support.ranks import Ranks


def holdings(team: Ranks, ranks: list[int]) -> list[tuple[int, int, int]]:
    """Returns the numbers of descriptors, threads, and mappings of shared memory of each rank's process."""
    counts = team.all(ranks, do="count")
    return [
        (count["descriptors"], count["threads"], _shared(team, rank)) for rank, count in zip(ranks, counts, strict=True)
    ]


def _shared(team: Ranks, rank: int) -> int:
    maps = Path(f"/proc/{team.processes[rank].pid}/maps").read_text(encoding="utf-8")
    return sum("memfd:collc" in line for line in maps.splitlines())


def nothing_more_in_the_end(team: Ranks, ranks: list[int], before: list[tuple[int, int, int]]) -> None:
    """The listener of an id goes a second after the communicator."""
    deadline = time.monotonic() + 60
    while True:
        now = holdings(team, ranks)
        if all(new <= old for one, other in zip(now, before, strict=True) for new, old in zip(one, other, strict=True)):
            return
        assert time.monotonic() < deadline, (before, now)
        time.sleep(0.1)


def servers_are_empty(made: Lab) -> None:
    """No process, no socket that listens or is joined, no local socket: after the ranks have ended."""
    deadline = time.monotonic() + 60
    while True:
        left = {server: found for server in made.servers if (found := _left_on(made, server))}
        if not left:
            return
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _left_on(made: Lab, server: str) -> list[str]:
    space = f"{made.name}-{server}"
    processes = _lines("ip", "netns", "pids", space)
    # Connections that the system still closes, to an unreachable server, belong to no process, so they do not count.
    tcp = _lines("ip", "netns", "exec", space, "ss", "-tanH", "state", "listening", "state", "established")
    local = _lines("ip", "netns", "exec", space, "cat", "/proc/net/unix")[1:]
    return processes + tcp + local


def lab_is_gone(made: Lab) -> None:
    names = [line.split()[0] for line in _lines("ip", "netns", "list")]
    assert not [name for name in names if name.startswith(f"{made.name}-")]


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
