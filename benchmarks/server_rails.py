"""Servers of two ranks that several rails join, beside Open MPI, Gloo and UCX over the same rails, as root.

`python benchmarks/server_rails.py [--write docs/data/server-rails.yaml]`: for each set of rails, a job of collc, a
job of Open MPI and a job of torch's Gloo run at the same time on the servers of one lab (the tests' network namespaces)
and make an all_reduce in turn, round by round, with plain sockets over all rails at once and UCX's bandwidth test, one
way. Then the second rail's rate changes while they run.
Debian: openmpi-bin, libopenmpi-dev, ucx-utils.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measured import provenance, publish
from server_lab import TESTS, compiled, topology_text
from server_mpi import GLOO, HERE, MPI, OURS, PORT, Mpi

from collc.collectives.model import Collective

UCX, PLAIN = "UCX", "plain sockets"
NAMES = (OURS, MPI, GLOO, UCX, PLAIN)
RAILS = ((100, 50), (50, 100), (100, 100, 10))
CHANGES = (25, 100, 25, 100, 25)
SIZE = 16 << 20
UCX_PORT = 29671
UCX_MESSAGE = 1 << 20


def ucx_rate(made: Any, interfaces: str) -> float:
    """Mbit/s of messages of 1 MiB with tags from the first server to the second, over as many rails as UCX takes."""
    count = len(interfaces.split(","))
    setting = {
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": interfaces,
        "UCX_MAX_RNDV_RAILS": str(count),
        "UCX_MAX_EAGER_RAILS": str(count),
        # By rendezvous it would use one rail, whatever it is allowed.
        "UCX_RNDV_THRESH": "inf",
        "UCX_WARN_UNUSED_ENV_VARS": "n",
    }
    environment = {**os.environ, **setting}
    program = ["ucx_perftest", "-t", "tag_bw", "-s", str(UCX_MESSAGE), "-n", "24", "-w", "2", "-f", "-p", str(UCX_PORT)]
    there = subprocess.Popen(
        [*made.inside("b"), *program], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        command = [
            *made.inside("a"),
            "sh",
            "-c",
            'sleep 0.5; exec "$@"',
            "-",
            program[0],
            made.address("b"),
            *program[1:],
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    finally:
        there.terminate()
        there.wait()
    final = [words for line in done.stdout.splitlines() if len(words := line.split()) == 8 and words[0].isdigit()]
    if not final:
        raise SystemExit(f"ucx_perftest says {done.stdout[-500:]}{done.stderr[-500:]}")
    # Iterations; median, average, overall microseconds; average, overall MB/s (of 1 << 20 bytes); messages a second.
    return float(final[-1][-3]) * 8 * 1.048576


@contextmanager
def competitors(rates: tuple[int, ...], folder: Path) -> Iterator[tuple[Any, dict[str, Callable[[], float]]]]:
    """Yields a lab and a function per competitor, which returns Mbit/s of an all_reduce or of a one-way transfer."""
    from support.netlab import lab
    from support.plain_sockets import plain_rate
    from support.ranks import Ranks

    library = Path(compiled(topology_text("2+2", rates[0]), folder).library.path)
    count = SIZE // 4
    with lab("ab", *rates) as made:
        interfaces = ",".join(f"e{rail}" for rail in range(len(rates)))
        ours = {"COLLC_SOCKET_IFNAME": interfaces, "COLLC_NET": ""}
        theirs = {
            "GLOO_SOCKET_IFNAME": interfaces,
            "GLOO_ADDRESS": f"{made.address('a')}:{PORT}",
            "OMP_NUM_THREADS": "1",
        }
        team = Ranks(library, 4, ours, hosts="aabb", lab=made.name)
        gloo = Ranks(library, 4, theirs, HERE / "gloo_calls.py", hosts="aabb", lab=made.name)
        mpi = Mpi(made, {"a": 2, "b": 2}, folder, interfaces)

        def called(ranks: Ranks) -> float:
            answers = ranks.all(None, do="call", collective="all_reduce", count=count, times=1, together=True)
            if any(answer["result"] for answer in answers):
                raise SystemExit(f"{rates}: {answers}")
            return 8 * SIZE / 1e6 / max(float(answer["seconds"]) for answer in answers)

        try:
            if any(answer["result"] for answer in [*team.init(), *gloo.init()]):
                raise SystemExit(f"{rates}: no communicator")
            yield (
                made,
                {
                    OURS: lambda: called(team),
                    MPI: lambda: 8 * SIZE / 1e6 / mpi.seconds(Collective.ALL_REDUCE, count, 1),
                    GLOO: lambda: called(gloo),
                    UCX: lambda: ucx_rate(made, interfaces),
                    PLAIN: lambda: plain_rate(made, 1.5),
                },
            )
        finally:
            team.close()
            gloo.close()
            mpi.close()


def shares(made: Any, rates: tuple[int, ...], measure: Callable[[], float]) -> list[float]:
    """Returns the share of each rail in the bytes that the first server sends meanwhile."""
    before = [made.sent(rail)["a"] for rail in range(len(rates))]
    measure()
    sent = [made.sent(rail)["a"] - before[rail] for rail in range(len(rates))]
    return [one / sum(sent) for one in sent]


def constant(rates: tuple[int, ...], rounds: int, folder: Path) -> str:
    """A row of the first table."""
    with competitors(rates, folder) as (made, measures):
        for name in (OURS, MPI, GLOO):
            measures[name]()
        found: dict[str, list[float]] = {name: [] for name in NAMES}
        for number in range(rounds):
            for name in NAMES[:: 1 if number % 2 else -1]:
                found[name].append(measures[name]())
        cells = [" + ".join(map(str, rates)), f"{statistics.median(found[PLAIN]):.1f}"]
        for name in NAMES[:-1]:
            parts = [one / plain for one, plain in zip(found[name], found[PLAIN], strict=True)]
            cells.append(f"{statistics.median(parts):.1%}")
        cells += [
            ", ".join(f"{share:.1%}" for share in shares(made, rates, measures[name])) for name in (OURS, MPI, UCX)
        ]
    return f"| {' | '.join(cells)} |"


def changing(folder: Path) -> list[str]:
    """The rows of the second table: two calls after each change of the second rail's rate, of the sum of the rates."""
    rows = []
    with competitors((100, 100), folder) as (made, measures):
        for name in (OURS, MPI, GLOO):
            measures[name]()
        for rate in CHANGES:
            made.shape(1, rate)
            cells = [f"100 + {rate}"]
            for name in (OURS, MPI, GLOO, UCX):
                first = measures[name]() / (100 + rate)
                cells.append(f"{first:.1%}, {measures[name]() / (100 + rate):.1%}")
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Servers that several rails join, beside Open MPI, Gloo and UCX.")
    parser.add_argument("--write", type=Path, help="The file for the page; otherwise it is printed.")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for program, package in (
        ("mpicc.openmpi", "libopenmpi-dev"),
        ("mpirun.openmpi", "openmpi-bin"),
        ("ucx_perftest", "ucx-utils"),
    ):
        if shutil.which(program) is None:
            raise SystemExit(f"no {program} here (Debian: {package})")
    sys.path.insert(0, str(TESTS))
    before = os.getloadavg()[0]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for rates in RAILS:
            rows.append(constant(rates, arguments.rounds, Path(folder)))
            print(rows[-1], file=sys.stderr, flush=True)
        changes = changing(Path(folder))
    import torch

    mpi, ucx = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for command in (["mpirun.openmpi", "--version"], ["ucx_info", "-v"])
    )
    version = re.search(r"\d+(\.\d+)+", ucx)
    versions = f"Open MPI {mpi.split()[2].strip(')')}, torch {torch.__version__.partition('+')[0]}"
    lines = [
        "# Rails beside Open MPI, Gloo and UCX",
        "",
        f"{provenance()}, {versions}, UCX {version[0] if version else 'of an unknown version'}.",
        "Servers are network namespaces that rails of these rates join (Mbit/s in each direction), and all processes",
        f"share the cores. All measure in turn, {arguments.rounds} rounds, medians; the rate of the first interface is",
        "named first. collc, Open MPI (`btl_tcp_if_include` with all interfaces) and Gloo (`GLOO_SOCKET_IFNAME`;",
        "a call goes over one of them) make an all_reduce of 16 MiB of 2 + 2 ranks, for which each server has to",
        "send 16 MiB. UCX is `ucx_perftest -t tag_bw` with messages of 1 MiB over all interfaces (`UCX_NET_DEVICES`,",
        "`UCX_MAX_EAGER_RAILS`, `UCX_RNDV_THRESH=inf`), one way, as are plain sockets, one for each rail.",
        f"Load of the machine when it began and ended: {before:.0f} and {os.getloadavg()[0]:.0f}.",
        "",
        "Of plain sockets over all rails at once:",
        "",
        "| rails | plain sockets, Mbit/s | collc | Open MPI | Gloo | UCX | bytes by rail: collc | Open MPI | UCX |",
        "|---|--:|--:|--:|--:|--:|---|---|---|",
        *rows,
        "",
        "The second rail's rate changes, from 100 + 100. Of the sum of the rates, in the first and the second call",
        "after each change:",
        "",
        "| rails | collc | Open MPI | Gloo | UCX |",
        "|---|--:|--:|--:|--:|",
        *changes,
    ]
    publish("\n".join(lines) + "\n", arguments.write)


if __name__ == "__main__":
    main()
