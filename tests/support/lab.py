"""Servers as network namespaces with rails of known speed, for tests that are root on a machine with iproute2.

Each server is a namespace with a host name and a boot id of its own and an interface e0, e1 ... per rail; one more
namespace holds the rails' bridges. What enters and leaves an interface is limited by a token bucket.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# Runs in new namespaces: sets the host name and the boot id, then executes the command.
_ENTER = 'hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id && shift 2 && exec "$@"'


def why_not() -> str:
    """Why there can be no lab here; "" if there can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    missing = [tool for tool in ("ip", "tc", "unshare", "mount", "hostname") if shutil.which(tool) is None]
    if missing:
        return f"no {missing[0]} here"
    name = f"collc-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return "" if made.returncode == 0 else "this container makes no network namespaces"


@dataclass(frozen=True)
class Lab:
    """Servers s0, s1 ..., each with the address 10.77.RAIL.SERVER+1 on every rail."""

    name: str
    servers: int
    folder: Path

    def namespace(self, server: int) -> str:
        return f"{self.name}-{server}"

    def inside(self, server: int, argv: Sequence[str]) -> list[str]:
        """A command as it runs on a server."""
        boot = self.folder / f"boot{server}"
        if not boot.exists():
            boot.write_text(f"{uuid.uuid4()}\n")
        enter = ["ip", "netns", "exec", self.namespace(server), "unshare", "-u", "-m", "--propagation", "private"]
        return [*enter, "sh", "-c", _ENTER, "enter", f"s{server}", str(boot), *argv]


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"


@contextlib.contextmanager
def lab(folder: Path, rates: Sequence[Sequence[int]]) -> Iterator[Lab]:
    """Servers on rails, gone in the end.

    Args:
        rates: per server the Mbit/s of each rail, both ways.
    """
    made = Lab(f"collc-{os.getpid()}", len(rates), folder)
    hub = f"{made.name}-hub"
    try:
        _run("ip", "netns", "add", hub)
        for rail in range(len(rates[0])):
            _run("ip", "-n", hub, "link", "add", f"br{rail}", "type", "bridge")
            _run("ip", "-n", hub, "link", "set", f"br{rail}", "up")
        for server, speeds in enumerate(rates):
            space = made.namespace(server)
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
            for rail, mbit in enumerate(speeds):
                port = f"p{server}-{rail}"
                _run("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", f"e{rail}", "netns", space)
                _run("ip", "-n", hub, "link", "set", port, "master", f"br{rail}", "up")
                _run("ip", "-n", space, "addr", "add", f"10.77.{rail}.{server + 1}/24", "dev", f"e{rail}")
                _run("ip", "-n", space, "link", "set", f"e{rail}", "up")
                for where, device in ((hub, port), (space, f"e{rail}")):
                    bucket = ("tbf", "rate", f"{mbit}mbit", "burst", "32kb", "latency", "100ms")
                    _run("tc", "-n", where, "qdisc", "add", "dev", device, "root", *bucket)
        yield made
    finally:
        for space in [hub, *(made.namespace(server) for server in range(len(rates)))]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
