"""Servers on one machine: network namespaces that a switch joins by links of known rates. Nothing else changes.

Server `a` of a lab is the namespace ``LAB-a`` with the interface `e0`; what it sends and what it receives is shaped
each by a token bucket, so links are full duplex. Only root can make a lab.
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


@dataclass(frozen=True)
class Lab:
    """Servers by letter; `rate` is of each direction of every server's link, in Mbit/s."""

    name: str
    servers: str
    rate: int

    @property
    def bytes_per_second(self) -> float:
        return self.rate * 1e6 / 8

    def inside(self, server: str) -> list[str]:
        """What starts a command on a server: it has a host name of its own, and counts as a machine of its own."""
        named = 'hostname "$0" 2>/dev/null || echo "$0" >/proc/sys/kernel/hostname; exec "$@"'
        shell = ["sh", "-c", named, f"node-{server}"]
        return [
            "ip",
            "netns",
            "exec",
            f"{self.name}-{server}",
            "unshare",
            "-u",
            "env",
            f"COLLC_HOSTID={server}",
            *shell,
        ]

    def address(self, server: str) -> str:
        """The address of a server's interface."""
        return f"10.79.0.{self.servers.index(server) + 1}"

    def sent(self) -> dict[str, int]:
        """Bytes that each server has sent so far, with all headers of packets."""
        found = {}
        for server in self.servers:
            text = _run("ip", "netns", "exec", f"{self.name}-{server}", "cat", "/sys/class/net/e0/statistics/tx_bytes")
            found[server] = int(text)
        return found

    def cable(self, server: str, state: str) -> None:
        """Pulls a server's cable ("down"), which both ends see, or puts it back ("up")."""
        _run("ip", "-n", f"{self.name}-sw", "link", "set", f"p{server}", state)

    def drop(self, server: str) -> None:
        """From now on the switch loses what a server sends and gets; its link stays up."""
        _run("ip", "-n", f"{self.name}-sw", "link", "set", f"p{server}", "nomaster")


def _make(lab: Lab) -> None:
    switch = f"{lab.name}-sw"
    shape = ("root", "tbf", "rate", f"{lab.rate}mbit", "burst", "16kb", "latency", "100ms")
    _run("ip", "netns", "add", switch)
    _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
    _run("ip", "-n", switch, "link", "set", "br0", "up")
    for number, server in enumerate(lab.servers, 1):
        space = f"{lab.name}-{server}"
        _run("ip", "netns", "add", space)
        _run("ip", "-n", space, "link", "set", "lo", "up")
        veth = ("type", "veth", "peer", "name", "e0", "netns", space)
        _run("ip", "-n", switch, "link", "add", f"p{server}", *veth)
        _run("ip", "-n", switch, "link", "set", f"p{server}", "master", "br0", "up")
        _run("ip", "-n", space, "addr", "add", f"10.79.0.{number}/24", "dev", "e0")
        _run("ip", "-n", space, "link", "set", "e0", "up")
        _run("ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", "e0", *shape)
        _run("ip", "netns", "exec", switch, "tc", "qdisc", "replace", "dev", f"p{server}", *shape)


@contextmanager
def lab(servers: str, rate: int = 100) -> Iterator[Lab]:
    """A lab of this process; the processes in it must have ended when it goes.

    Raises:
        NoLab: this system does not let us make network namespaces with shaped links.
    """
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        raise NoLab("only root makes network namespaces" if not missing else f"no {missing[0]} (Debian: iproute2)")
    made = Lab(f"collc{os.getpid()}", servers, rate)
    try:
        _make(made)
        yield made
    finally:
        for name in (*servers, "sw"):
            subprocess.run(["ip", "netns", "del", f"{made.name}-{name}"], capture_output=True, check=False)
