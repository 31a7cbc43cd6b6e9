"""collc.torch on several servers beside Gloo: all_reduces by size and a training step under DDP, over shaped links.

`python benchmarks/servers.py [--write docs/data/servers.yaml]`, as root: makes a lab of network namespaces (as
the tests do), starts an agent of torchrun on each of two servers, with 3 and 5 ranks, and runs torch_calls.py in
them: both backends in the same processes, in turn, round by round. It compares ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from measured import provenance, publish
from torch_calls import row, size_text

HERE = Path(__file__).resolve().parent
SIZES = [64 << 10, 1 << 20, 16 << 20]
PORT = 29631


def measure(shape: list[int], rate: int, sizes: list[int], rounds: int) -> Any:
    """Returns rank 0's result, for `shape` ranks on servers whose links have `rate` Mbit/s in each direction."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from support.netlab import lab

    from collc.torch.library import library_for

    library_for(shape)  # the ranks find it in the cache
    letters = "abcdefgh"[: len(shape)]
    threads = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    network = {"GLOO_SOCKET_IFNAME": "e0", "COLLC_SOCKET_IFNAME": "e0", "TP_SOCKET_IFNAME": "e0"}
    with lab(letters, rate) as made:
        agents = []
        for number, (server, ranks) in enumerate(zip(letters, shape, strict=True)):
            agent = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", f"--nnodes={len(shape)}"]
            agent += [f"--nproc-per-node={ranks}", f"--node-rank={number}", f"--master-addr={made.address('a')}"]
            agent += [f"--master-port={PORT}", str(HERE / "torch_calls.py"), "--rounds", str(rounds)]
            command = [*made.inside(server), *agent, "--sizes", *map(str, sizes)]
            pipe = subprocess.PIPE
            agents.append(subprocess.Popen(command, stdout=pipe, text=True, env={**os.environ, **threads, **network}))
        outputs = [agent.communicate()[0] for agent in agents]
        if any(agent.returncode for agent in agents):
            raise SystemExit("an agent of torchrun failed")
    return json.loads(next(line for line in outputs[0].splitlines() if line.startswith("{")))


def report(shape: list[int], rate: int, rounds: int, result: Any, loads: list[float]) -> str:
    """Returns the page; tables.py makes the data file from it."""
    import torch

    ranks = " + ".join(map(str, shape))
    lines = [
        "# collc.torch on two servers beside Gloo",
        "",
        f"{provenance()}, torch {torch.__version__.partition('+')[0]}.",
        f"{ranks} ranks; the servers are network namespaces whose links have {rate} Mbit/s in each direction, and all",
        "ranks share the cores.",
        f"Both backends in the same processes, {rounds} rounds in turn; medians of milliseconds on rank 0. A ratio is",
        "Gloo's time over collc's within a round, so above 1 collc is faster; the last column is its range.",
        f"Load of the machine when it began and ended: {loads[0]:.0f} and {loads[1]:.0f}; niceness {os.nice(0)}.",
        "",
        "| | Gloo ms | collc ms | ratio | rounds |",
        "|---|---|---|---|---|",
        *(row(f"all_reduce, {size_text(int(size))}", times) for size, times in result["all_reduce"].items()),
        row(f"DDP step, {result['parameters'] / 1e6:.1f} million parameters", result["step"]),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="collc.torch on several servers beside Gloo.")
    parser.add_argument("--write", type=Path, help="The file for the table; otherwise it is printed.")
    parser.add_argument("--shape", type=int, nargs="+", default=[3, 5], help="Ranks on each server.")
    parser.add_argument("--rate", type=int, default=100, help="Mbit/s of each server's link.")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="Bytes of all_reduces.")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    result = measure(arguments.shape, arguments.rate, arguments.sizes, arguments.rounds)
    text = report(arguments.shape, arguments.rate, arguments.rounds, result, [before, os.getloadavg()[0]])
    publish(text, arguments.write)


if __name__ == "__main__":
    main()
