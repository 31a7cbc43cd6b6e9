"""The share of the proven rate that a host library reaches over several servers with shaped links, beside sockets.

`python benchmarks/server_rates.py [--write docs/data/server-rates.yaml]`, as root: for every shape, all five
collectives of one size on the servers of one lab (the tests' network namespaces), and in turn with them plain sockets
that send the same number of bytes: the first server to the second (one way), and every server to the next one at once
(a ring).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measured import provenance, publish
from server_lab import SHAPES, TESTS, compiled, places, topology_text

from collc.collectives.model import COMPILED, Collective

PORT = 29651
# Argument 1: the number of bytes; 2: where to send them, or "": only receives; 3: whether to receive.
PLAIN = f"""
import socket, sys, threading, time
size, peer, receives = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
door = socket.create_server(("", {PORT}))
print("ready", flush=True)
sys.stdin.readline()
start = time.monotonic()
def send():
    with socket.create_connection((peer, {PORT})) as out:
        out.sendall(bytes(size))
        out.shutdown(socket.SHUT_WR)
        out.recv(1)
sender = threading.Thread(target=send)
if peer:
    sender.start()
if receives:
    inward, _ = door.accept()
    room, left = bytearray(1 << 18), size
    while left:
        left -= inward.recv_into(room)
    inward.close()
if peer:
    sender.join()
print(time.monotonic() - start, flush=True)
"""


@dataclass
class Row:
    """Shares of the proven rate, by round."""

    name: str
    shares: list[float] = field(default_factory=list)


def plain(made: Any, size: int, ring: bool) -> float:
    """Seconds that plain sockets take for `size` bytes, of the slowest server."""
    servers = made.servers if ring else made.servers[:2]
    started = []
    for i, server in enumerate(servers):
        peer = made.address(servers[(i + 1) % len(servers)]) if ring or i == 0 else ""
        command = [*made.inside(server), sys.executable, "-c", PLAIN, str(size), peer, str(int(ring or i == 1))]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return max(float(process.communicate()[0]) for process in started)


def measure(
    shape: str, rate: int, size: int, rounds: int, collectives: Sequence[Collective], folder: Path
) -> list[Row]:
    """Every collective and both kinds of plain sockets, in turn."""
    from support.netlab import lab
    from support.ranks import Ranks

    letters, hosts = places(shape)
    result = compiled(topology_text(shape, rate), folder)
    bounds = {plan.collective: float(plan.bound or 0) for plan in result.documents[0].plans}
    rows = {name: Row(name) for name in ("one way", "ring", *(c.value for c in collectives))}
    with lab(letters, rate) as made:
        team = Ranks(Path(result.library.path), len(hosts), {"COLLC_SOCKET_IFNAME": "e0"}, hosts=hosts, lab=made.name)
        try:
            if any(answer["result"] for answer in team.init()):
                raise SystemExit(f"{shape}: no communicator")
            for _ in range(rounds):
                for ring in (False, True):
                    took = plain(made, size, ring)
                    rows["ring" if ring else "one way"].shares.append(size / made.bytes_per_second / took)
                for collective in collectives:
                    count = size // 4 // (len(hosts) if collective.per_rank else 1)
                    answers = team.all(do="call", collective=collective.value, count=count, times=1, together=True)
                    if any(answer["result"] for answer in answers):
                        raise SystemExit(f"{shape}: {answers}")
                    took = max(float(answer["seconds"]) for answer in answers)
                    rows[collective.value].shares.append(size / bounds[collective] / 1e9 / took)
        finally:
            team.close()
    return list(rows.values())


def cell(row: Row) -> str:
    """The median, and the range if there are several rounds."""
    low, high = min(row.shares), max(row.shares)
    middle = f"{statistics.median(row.shares):.1%}"
    return middle if len(row.shares) == 1 else f"{middle} ({low:.1%} to {high:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Several servers: what is reached of the proven rate.")
    parser.add_argument("--write", type=Path, help="The file for the page; otherwise it is printed.")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="Ranks on each server, as 3+5.")
    parser.add_argument("--collectives", nargs="+", default=[c.value for c in COMPILED])
    parser.add_argument("--rate", type=int, default=100, help="Mbit/s of each server's link.")
    parser.add_argument("--size", type=int, default=16 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    before = os.getloadavg()[0]
    columns: list[list[Row]] = []
    for shape in arguments.shapes:
        with tempfile.TemporaryDirectory() as folder:
            chosen = [Collective(name) for name in arguments.collectives]
            columns.append(measure(shape, arguments.rate, arguments.size, arguments.rounds, chosen, Path(folder)))
        print(shape, *(f"{row.name} {cell(row)}" for row in columns[-1]), sep="; ", file=sys.stderr, flush=True)
    lines = [
        "# What several servers reach of the proven rate",
        "",
        f"{provenance()}.",
        f"Servers are network namespaces whose links have {arguments.rate} Mbit/s in each direction, headers of",
        "packets included; all ranks share the cores. Shares of the plan's bound that calls of",
        f"{arguments.size >> 20} MiB reach, and of a link that plain sockets reach with as many bytes: one server to",
        "another (one way), and every server to the next one at once (a ring). Headers leave 95.6% where traffic goes",
        "one way, and acknowledgements take some more where it goes both ways.",
        f"Medians of {arguments.rounds} rounds, in each of which everything ran in turn.",
        f"Load of the machine when it began and ended: {before:.0f} and {os.getloadavg()[0]:.0f}.",
        "",
        f"| | {' | '.join(arguments.shapes)} |",
        "|---|" + "--:|" * len(columns),
        *(f"| {rows[0].name} | {' | '.join(map(cell, rows))} |" for rows in zip(*columns, strict=True)),
    ]
    publish("\n".join(lines) + "\n", arguments.write)


if __name__ == "__main__":
    main()
