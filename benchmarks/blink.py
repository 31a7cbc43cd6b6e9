"""Blink's claims (Wang et al., MLSys 2020) in plans and model: docs/reproduced/blink-plans.md, by `make reproduce`.

Figure 14: theoretical speedups over NCCL-style rings on every connected allocation of the DGX-1V and the DGX-1P.
Figures 11 and 12: chunk sizes and the MIAD search for one, in the model. DGX-2: one-hop trees against double binary
trees and rings by size, in the model.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collc.choose.table import fastest
from collc.collectives.model import Collective
from collc.collectives.sizes import short_size, size_series
from collc.simulator.generations import MACHINES
from collc.simulator.params import Machine
from collc.simulator.run import Simulator, Variant, variants
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.tune.miad import miad

K, M = 1 << 10, 1 << 20
COMPARED = ("broadcast", "all_gather", "all_reduce")
# Blink measured these on real GPUs, against NCCL 2.4: largest, geometric mean.
MEASURED = {
    ("dgx1v", "broadcast"): "6, 2",
    ("dgx1p", "broadcast"): "3, 1.6",
    ("dgx1v", "all_reduce"): "8, 2",
    ("dgx1p", "all_reduce"): "-",
    ("dgx1v", "all_gather"): "-",
    ("dgx1p", "all_gather"): "-",
}
Table = list[list[str]]


def markdown(header: Sequence[str], rows: Table) -> str:
    """A table whose first column is text and whose others are figures."""
    align = "|---|" + "--:|" * (len(header) - 1)
    return "\n".join(["| " + " | ".join(header) + " |", align, *("| " + " | ".join(row) + " |" for row in rows)])


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def allocations(machine: str) -> list[dict[str, Any]]:
    """Every connected allocation with its speedups, as `collc plan` tells them."""
    command = [sys.executable, "-m", "collc", "plan", machine, "--allocations", "connected", "--compare", "rings"]
    done = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["allocations"]
    return found


def fraction(text: str) -> float:
    up, _, down = text.partition("/")
    return int(up) / int(down or 1)


def figure_14() -> str:
    """Largest and mean speedup by machine and by the number of GPUs."""
    summary, by_size = [], []
    for machine in ("dgx1v", "dgx1p"):
        found: dict[str, list[float]] = defaultdict(list)
        sized: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        rows = allocations(machine)
        for row in rows:
            for name, value in row["speedup"].items():
                found[name].append(fraction(value))
                sized[len(row["gpus"])][name].append(fraction(value))
        for name in COMPARED:
            cells = [f"{max(found[name]):.2f}", f"{mean(found[name]):.2f}", MEASURED[machine, name]]
            summary.append([f"{machine}, {name}", str(len(rows)), *cells])
        for n in sorted(sized):
            cells = [f"{max(sized[n][c]):.2f}, {mean(sized[n][c]):.2f}" for c in COMPARED]
            by_size.append([f"{machine}, {n} GPUs", str(len(sized[n][COMPARED[0]])), *cells])
    header = ["", "allocations", "largest", "geometric mean", "Blink measured (largest, mean)"]
    detail = ["largest, geometric mean", "allocations", *COMPARED]
    return markdown(header, summary) + "\n\n" + markdown(detail, by_size)


def simulator(machine: str, collective: Collective, parameters: Machine) -> Simulator:
    return Simulator(plan_graph(load_topology(machine)), collective, 0 if collective.rooted else None, parameters)


def chunks_in_the_model(parameters: Machine, chunks: Sequence[int], sizes: Sequence[int]) -> str:
    """GB/s of a broadcast on a DGX-1V by chunk size."""
    sim = simulator("dgx1v", Collective.BROADCAST, parameters)
    channels = len(sim.plan("trees").trees)
    rows = []
    for size in sizes:
        rates = [sim.predict(Variant("trees", "Simple", chunk, channels), size).algbw_gbps for chunk in chunks]
        rows.append([f"broadcast, {short_size(size)}", *(f"{rate:.0f}" for rate in rates)])
    return markdown(["GB/s with chunks of", *map(short_size, chunks)], rows)


def figure_12(parameters: Machine, sizes: Sequence[int]) -> str:
    """The walk of MIAD in the model, chunks in steps of 16 KiB up to a slot, and how far from the best it ends."""
    sim = simulator("dgx1v", Collective.BROADCAST, parameters)
    channels = len(sim.plan("trees").trees)
    ladder = [16 * K * i for i in range(1, 33)]
    rows = []
    for size in sizes:
        times: dict[int, float] = {}

        def time(chunk: int, size: int = size, times: dict[int, float] = times) -> float:
            if chunk not in times:
                times[chunk] = sim.predict(Variant("trees", "Simple", chunk, channels), size).time_us
            return times[chunk]

        walk = miad(ladder, lambda a, b: (time(a), time(b)))
        asked = len(times)
        path = [ladder[0], *(trial.other for trial in walk.trials)]
        best = min(ladder, key=time)
        trail = " ".join(f"{short_size(chunk)}:{size / times[chunk] / 1e3:.0f}" for chunk in path)
        ratio = times[walk.chunk] / times[best] - 1
        rows.append([short_size(size), trail, short_size(walk.chunk), str(asked), f"{short_size(best)}, {ratio:.1%}"])
    header = ["broadcast of", "chunk:GB/s in the order of the trials", "ends at", "sizes tried", "best of 32, lost"]
    return markdown(header, rows)


def one_hop(parameters: Machine, collective: Collective, sizes: Sequence[int]) -> str:
    """Microseconds on a DGX-2, each kind with its best protocol, chunk and channels at each size."""
    sim = simulator("dgx2", collective, parameters)
    rows = []
    kinds = [kind for kind in ("trees", "one-hop", "double-binary", "ring") if kind in sim.kinds]
    grids = {kind: variants(sim, [kind]) for kind in kinds}
    for size in sizes:
        times = {kind: fastest(sim, grid, size).time_us for kind, grid in grids.items()}
        ours = min(times["trees"], times["one-hop"])
        ratios = [f"{times[kind] / ours:.2f}" for kind in ("double-binary", "ring")]
        rows.append([short_size(size), *(f"{times[kind]:.1f}" for kind in kinds), *ratios])
    return markdown(["bytes", *(f"{kind} us" for kind in kinds), "double-binary / ours", "ring / ours"], rows)


PAGE = """# Blink's claims, in collc's plans and model

Written by `make reproduce`; nothing here was measured on GPUs. Blink is Wang et al., MLSys 2020; every figure of it
has its claims in [blink.md](blink.md). What it measured on real machines stands beside for comparison, and is not
what a model can confirm.

## Figure 14: theoretical speedups over rings

The rate of the optimal plan over that of the best set of NCCL-style rings (one direction each; where no ring closes,
rings go over PCIe at half a link's speed), on every connected allocation of 3 to 8 GPUs, up to isomorphism:
`collc plan dgx1v --allocations connected --compare rings`.

{figure_14}

## Figure 11: chunk size

Broadcast from rank 0 on a DGX-1V, the packed trees, one channel each, protocol Simple, generic parameters. Small chunks
pay for steps, large ones for filling the pipeline:

{figure_11}

The same with the parameters fitted to V100 tables ([validation.md](../validation.md)):

{figure_11_v100}

## Figure 12: MIAD

The search that `collc tune` uses (`collc/tune/miad.py`), run in the model with chunks in steps of 16K up to a slot of
512K: the chunk doubles as long as calls get faster, then comes down in steps of 16K. On a flat top it takes many;
a library for tuning holds few sizes, so `collc tune` takes at most one or two.

{figure_12}

## One-hop trees on a DGX-2

all_reduce over 16 GPUs behind NVSwitch, each kind with its best protocol, chunk and channels at each size. Blink
measured up to 3.32 times lower latency and up to 3.5 times the bandwidth over NCCL's double binary trees and rings.
`trees` are collc's packed trees, which for all_reduce on a star are one-hop trees too: one per root.

Generic parameters:

{one_hop}

Fitted to V100:

{one_hop_v100}

Broadcast, generic parameters: `one-hop` is one star from the root, `trees` are Blink's two-hop trees (root to i, i to
all):

{broadcast}

What the model does not show: the 3.5 times higher bandwidth. Its ring fills the wires as well as the trees do at large
sizes, where NCCL's ring of that time did not. With V100 parameters (22 GB/s per thread block) the ring
is even ahead at 64M: a block that goes up a tree and then down it is busy twice.
"""


def page() -> str:
    generic, v100 = MACHINES["generic"], MACHINES["v100"]
    chunks = [c * K for c in (4, 16, 32, 64, 128, 256, 512)]
    sizes = size_series(K, 256 * M, 16)
    return PAGE.format(
        figure_14=figure_14(),
        figure_11=chunks_in_the_model(generic, chunks, [M, 16 * M, 64 * M, 512 * M]),
        figure_11_v100=chunks_in_the_model(v100, chunks, [M, 16 * M, 64 * M, 512 * M]),
        figure_12=figure_12(generic, [4 * M, 64 * M, 512 * M]),
        one_hop=one_hop(generic, Collective.ALL_REDUCE, sizes),
        one_hop_v100=one_hop(v100, Collective.ALL_REDUCE, sizes),
        broadcast=one_hop(generic, Collective.BROADCAST, sizes),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page here instead of printing it")
    options = parser.parse_args()
    text = page()
    if options.write is None:
        print(text, end="")
    else:
        options.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
