"""Servers on one machine: network namespaces that a switch joins by links of known rates. Nothing else changes.

Server `a` of a lab is the namespace ``LAB-a`` with the interface `e0`, and for further rails `e1` and so on. One token
bucket shapes the bytes that it sends, and one the bytes that it receives, so links are full duplex. A lab needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class NoLab(Exception):
    """Why this system makes no lab."""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise NoLab(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def inside(lab: str, server: str) -> list[str]:
    """`Lab.inside` of the lab with this name: the process that it starts becomes the command."""
    named = 'hostname "$0" 2>/dev/null || echo "$0" >/proc/sys/kernel/hostname; exec "$@"'
    space = ["ip", "netns", "exec", f"{lab}-{server}", "unshare", "-u", "env", f"COLLC_HOSTID={server}"]
    return [*space, "sh", "-c", named, f"node-{server}"]


@dataclass(frozen=True)
class Lab:
    """Servers by letter; `rate` is of each direction of every server's link, in Mbit/s; `more`: of further rails."""

    name: str
    servers: str
    rate: int
    more: tuple[int, ...] = ()

    @property
    def bytes_per_second(self) -> float:
        return self.rate * 1e6 / 8

    def inside(self, server: str) -> list[str]:
        """Returns the prefix of a command that runs on a server, where host name and boot id are another machine's."""
        return inside(self.name, server)

    def address(self, server: str) -> str:
        """The address of a server's interface."""
        return f"10.79.0.{self.servers.index(server) + 1}"

    def sent(self, rail: int = 0) -> dict[str, int]:
        """Bytes that each server has sent so far on a rail, with all headers of packets."""
        found = {}
        for server in self.servers:
            counter = f"/sys/class/net/e{rail}/statistics/tx_bytes"
            found[server] = int(_run("ip", "netns", "exec", f"{self.name}-{server}", "cat", counter))
        return found

    def cable(self, server: str, state: str, rail: int = 0) -> None:
        """Pulls a server's cable ("down"), which both ends see, or puts it back ("up")."""
        _run("ip", "-n", f"{self.name}-sw", "link", "set", f"p{server}{rail}", state)

    def drop(self, server: str, rail: int = 0, lost: bool = True) -> None:
        """Makes the switch drop all packets from and to a server while its link stays up; `lost=False` ends that."""
        joined = ("nomaster",) if lost else ("master", f"br{rail}")
        _run("ip", "-n", f"{self.name}-sw", "link", "set", f"p{server}{rail}", *joined)

    def shape(self, rail: int, rate: int) -> None:
        """The rate of a rail from now on, in Mbit/s, at all servers."""
        shape = ("root", "tbf", "rate", f"{rate}mbit", "burst", "16kb", "latency", "100ms")
        for server in self.servers:
            for space, device in ((server, f"e{rail}"), ("sw", f"p{server}{rail}")):
                space = f"{self.name}-{space}"
                _run("ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", device, *shape)


def _make(lab: Lab) -> None:
    switch = f"{lab.name}-sw"
    _run("ip", "netns", "add", switch)
    for server in lab.servers:
        _run("ip", "netns", "add", f"{lab.name}-{server}")
        _run("ip", "-n", f"{lab.name}-{server}", "link", "set", "lo", "up")
    for rail, rate in enumerate((lab.rate, *lab.more)):
        bridge = (f"br{rail}", "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
        _run("ip", "-n", switch, "link", "add", *bridge)
        _run("ip", "-n", switch, "link", "set", f"br{rail}", "up")
        for number, server in enumerate(lab.servers, 1):
            space, port, device = f"{lab.name}-{server}", f"p{server}{rail}", f"e{rail}"
            _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", device, "netns", space)
            _run("ip", "-n", switch, "link", "set", port, "master", f"br{rail}", "up")
            _run("ip", "-n", space, "addr", "add", f"10.79.{rail}.{number}/24", "dev", device)
            _run("ip", "-n", space, "link", "set", device, "up")
        lab.shape(rail, rate)


@contextmanager
def lab(servers: str, rate: int = 100, *more: int) -> Iterator[Lab]:
    """A lab of this process; the processes in it must have ended when it goes.

    Raises:
        NoLab: this system does not let us make network namespaces with shaped links.
    """
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        raise NoLab("only root makes network namespaces" if not missing else f"no {missing[0]} (Debian: iproute2)")
    made = Lab(f"collc{os.getpid()}", servers, rate, more)
    try:
        _make(made)
        yield made
    finally:
        for name in (*servers, "sw"):
            subprocess.run(["ip", "netns", "del", f"{made.name}-{name}"], capture_output=True, check=False)
