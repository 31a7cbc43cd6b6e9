"""The host target on several servers beside Open MPI and Gloo: every collective by size, over shaped links, as root.

`python benchmarks/server_mpi.py [--write docs/data/server-mpi.yaml]`: a job of collc, a job of Open MPI and a job of
torch's Gloo run at the same time on the servers of one lab (the tests' network namespaces) and call in turn, round by
round. Ranks that wait sleep, and clocks start when all ranks are ready. The benchmark compares ratios within a round,
and bytes over the links, which do not depend on the load of the machine. Debian: openmpi-bin, libopenmpi-dev.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
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
from torch_calls import size_text

from collc.collectives.model import COMPILED, Collective

HERE = Path(__file__).resolve().parent
OURS, MPI, GLOO = "collc", "Open MPI", "Gloo"
PEERS = (MPI, GLOO)
PORT = 29661
SIZES = [64 << 10, 1 << 20, 16 << 20]
TIMES = {64 << 10: 5}


@dataclass
class Row:
    """For each library, the seconds of a call by round, and the bytes that the busiest server sent per call."""

    collective: Collective
    size: int
    bound_gbps: float
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in (OURS, *PEERS)})
    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys((OURS, *PEERS), 0))


class Mpi:
    """A job of Open MPI over the servers of a lab."""

    def __init__(self, made: Any, hosts: dict[str, int], folder: Path, interfaces: str = "e0") -> None:
        program = folder / "mpi_calls"
        subprocess.run(["mpicc.openmpi", "-O2", str(HERE / "mpi_calls.c"), "-o", str(program)], check=True)
        # In place of ssh.
        agent = folder / "agent"
        cases = "\n".join(f'{made.address(s)}) set -- {shlex.join(made.inside(s))} sh -c "$*" ;;' for s in hosts)
        skip = 'while [ "${1#-}" != "$1" ]; do shift; done'
        agent.write_text(f'#!/bin/sh\n{skip}\nhost=$1; shift\ncase $host in\n{cases}\nesac\nexec "$@"\n')
        agent.chmod(0o755)
        rules = {
            "plm_rsh_agent": str(agent),
            "oob_tcp_if_include": "e0",
            "orte_keep_fqdn_hostnames": "1",
            "pml": "ob1",
            "btl": "self,vader,tcp",
            "btl_tcp_if_include": interfaces,
        }
        command = [*made.inside(next(iter(hosts))), "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]
        command += ["--bind-to", "none", *(word for rule in rules.items() for word in ("--mca", *rule))]
        command += ["--host", ",".join(f"{made.address(s)}:{count}" for s, count in hosts.items()), str(program)]
        self.job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, collective: Collective, count: int, times: int) -> float:
        """Returns the seconds of one call on the slowest rank."""
        assert self.job.stdin is not None
        assert self.job.stdout is not None
        self.job.stdin.write(f"{collective.value} {count} {times}\n")
        self.job.stdin.flush()
        line = self.job.stdout.readline()
        if not line:
            raise SystemExit(f"Open MPI ended with status {self.job.wait()}")
        return float(line) / times

    def close(self) -> None:
        assert self.job.stdin is not None
        self.job.stdin.close()
        try:
            self.job.wait(20)
        except subprocess.TimeoutExpired:
            self.job.kill()


def measure(shape: str, rate: int, sizes: Sequence[int], rounds: int, folder: Path) -> list[Row]:
    from support.netlab import lab
    from support.ranks import Ranks

    letters, hosts = places(shape)
    result = compiled(topology_text(shape, rate), folder)
    bounds = {plan.collective: plan.bound for plan in result.documents[0].plans}
    with lab(letters, rate) as made:
        path = Path(result.library.path)
        team = Ranks(path, len(hosts), {"COLLC_SOCKET_IFNAME": "e0"}, hosts=hosts, lab=made.name)
        network = {"GLOO_SOCKET_IFNAME": "e0", "GLOO_ADDRESS": f"{made.address('a')}:{PORT}", "OMP_NUM_THREADS": "1"}
        gloo = Ranks(path, len(hosts), network, HERE / "gloo_calls.py", hosts=hosts, lab=made.name)
        mpi = Mpi(made, {letter: hosts.count(letter) for letter in letters}, folder)

        def seconds(name: str, collective: Collective, count: int, times: int) -> float:
            if name == MPI:
                return mpi.seconds(collective, count, times)
            order = {"do": "call", "collective": collective.value, "count": count, "times": times, "together": True}
            answers = (team if name == OURS else gloo).all(None, **order)
            if any(answer["result"] for answer in answers):
                raise SystemExit(f"{shape}: {answers}")
            return max(float(answer["seconds"]) for answer in answers) / times

        try:
            if any(answer["result"] for answer in [*team.init(), *gloo.init()]):
                raise SystemExit(f"{shape}: no communicator")
            rows = []
            for collective in COMPILED:
                for size in sizes:
                    row = Row(collective, size, float(bounds[collective] or 0))
                    count = size // 4 // (len(hosts) if collective.per_rank else 1)
                    times = TIMES.get(size, 1)
                    for number in range(rounds if size < 16 << 20 else max(1, rounds // 2)):
                        for name in (OURS, *PEERS)[:: 1 if number % 2 else -1]:
                            before = made.sent()
                            row.seconds[name].append(seconds(name, collective, count, times))
                            after = made.sent()
                            busiest = max(after[server] - before[server] for server in letters) // times
                            row.bytes[name] = max(row.bytes[name], busiest)
                    rows.append(row)
        finally:
            team.close()
            gloo.close()
            mpi.close()
    return rows


def table(shape: str, rate: int, rows: Sequence[Row]) -> list[str]:
    """The part of the page about one shape."""
    lines = [
        f"## {shape} ranks",
        "",
        "| call | collc ms | Open MPI ms | ratio | rounds | Gloo ms | ratio | rounds | of the proven rate "
        "| bytes: collc | Open MPI | Gloo |",
        "|---|" + "--:|" * 11,
    ]
    for row in rows:
        time = statistics.median(row.seconds[OURS])
        least = row.size / row.bound_gbps / 1e9
        wire = least * rate * 1e6 / 8
        cells = [f"{row.collective.value}, {size_text(row.size)}", f"{time * 1e3:.3g}"]
        for peer in PEERS:
            ratios = sorted(theirs / ours for ours, theirs in zip(row.seconds[OURS], row.seconds[peer], strict=True))
            cells += [f"{statistics.median(row.seconds[peer]) * 1e3:.3g}", f"{statistics.median(ratios):.2f}"]
            cells.append(f"{ratios[0]:.2f} to {ratios[-1]:.2f}")
        cells += [f"{least / time:.0%}", *(f"{row.bytes[name] / wire:.2f}" for name in (OURS, *PEERS))]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description="The host target on several servers beside Open MPI and Gloo.")
    parser.add_argument("--write", type=Path, help="The file for the page; otherwise it is printed.")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="Ranks on each server, as 3+5.")
    parser.add_argument("--rate", type=int, default=100, help="Mbit/s of each server's link.")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    if shutil.which("mpicc.openmpi") is None or shutil.which("mpirun.openmpi") is None:
        raise SystemExit("no Open MPI here (Debian: openmpi-bin, libopenmpi-dev)")
    sys.path.insert(0, str(TESTS))
    before = os.getloadavg()[0]
    parts: list[str] = []
    for shape in arguments.shapes:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(shape, arguments.rate, arguments.sizes, arguments.rounds, Path(folder))
        parts += table(shape, arguments.rate, rows)
        print("\n".join(table(shape, arguments.rate, rows)), file=sys.stderr, flush=True)
    import torch

    version = subprocess.run(["mpirun.openmpi", "--version"], capture_output=True, text=True, check=True).stdout
    lines = [
        "# Several servers beside Open MPI and Gloo",
        "",
        f"{provenance()}, Open MPI {version.split()[2].strip(')')}, torch {torch.__version__.partition('+')[0]}.",
        f"Servers are network namespaces whose links have {arguments.rate} Mbit/s in each direction, and all ranks",
        f"share the cores. All libraries call in turn, {arguments.rounds} rounds (half of them at 16 MiB); medians of",
        "milliseconds. A ratio is the other library's time over collc's within a round, so above 1 collc is faster.",
        "The share of the proven rate is that of the plan's bound; headers leave 95.6% of it, less where traffic goes",
        "both ways (server-rates). Bytes are those of the server that sent most in the worst",
        "round, headers included, over what the bound lets one send; they include what a process of any of the",
        "libraries sends while it waits.",
        f"Load of the machine when it began and ended: {before:.0f} and {os.getloadavg()[0]:.0f}.",
        "",
        *parts,
    ]
    text = "\n".join(lines).rstrip() + "\n"
    publish(text, arguments.write)


if __name__ == "__main__":
    main()
