"""How much of its bound a plan reaches in the model: `python benchmarks/pacing.py --write docs/measurements/pacing.md`.

For machines and allocations, every collective and three large sizes: the packed trees with a thread block per part
(`one part a block`), with parts that take turns in blocks (`collc.lowering.take_turns`), and the rings. Then the
causes: all_reduce with one thing changed at a time.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from collc.choose.table import in_turns
from collc.collectives.model import COMPILED, Collective
from collc.errors import PackingError
from collc.ir.nodes import Program
from collc.options import CUDA
from collc.packing.candidates import MOST_CHANNELS, TURNS, spread
from collc.packing.model import Plan
from collc.pipeline import lower_by, parse_passes
from collc.simulator.params import GENERIC, Machine
from collc.simulator.run import Simulator, Variant, variants
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph

SIZES = (64 << 20, 256 << 20, 1 << 30)
LEAST_CHUNK = 32 << 10
MACHINES: tuple[tuple[str, str | None], ...] = (
    ("dgx1v", None),
    ("dgx1v", "0,1,2"),
    ("dgx1v", "0-4"),
    ("dgx1v", "1,4,5,6,7"),
    ("dgx1v", "0-5"),
    ("dgx1v", "0-6"),
    ("dgx1p", None),
    ("ac922", None),
    ("a100x4-nv4", None),
    ("hgx-h100", None),
    ("pcie-8x4090", None),
    ("mi250", None),
)
# The factors are shown at this size and chunk, on these.
SIZE, CHUNK = 256 << 20, 64 << 10
FACTORS_ON: tuple[tuple[str, str | None], ...] = (
    ("dgx1v", "0-4"),
    ("dgx1v", "0-6"),
    ("dgx1v", None),
    ("dgx1p", None),
    ("ac922", None),
)

INTRODUCTION = """# Packed trees and their bound, in the model

Written by `python benchmarks/pacing.py --write docs/measurements/pacing.md`: simulated algbw over the bound that the
plan proves, generic parameters without the limit of a block, Simple (which carries all of a link), the best chunk and
number of channels. "One part a block" gives every part of the data (a tree's, or a copy's of one) a channel of its own,
32 at most; "in turns" cuts the trees into 96 parts, of which three take turns in a channel, in an order that differs
from channel to channel (`collc/lowering/take_turns.py`). "Rings" are the most rings that fit, as NCCL would search
them, over the same bound.
"""

CAUSES = """## Causes

all_reduce of 256 MiB in chunks of 64 KiB, simulated over bound, one thing changed at a time.

"""

READING = """
What this says:

- Neither latency nor slots nor fixed time per step is the cause, and more blocks of the same kind do not help.
- A block that goes up a tree and then down it uses one link after the other. Links serve all flows equally, so blocks
  with the same steps in the same order fall into step, and up and down links are busy in turn: exactly half of the
  bound where a plan is one tree.
- Cutting finer changes nothing by itself: parts that take turns in one order fall into step as well. Orders that differ
  do it: a network of 32 blocks that each visit S links in turn keeps them 32/(32 + S - 1) busy.
- Parts of unequal width were the cause in all_gather and reduce_scatter: shares of one link are equal, so a block with
  a wider part ends later. Three parts a block, neighbours in the plan, give every block as much.
"""


def graph_of(machine: str, gpus: str | None) -> PlanGraph:
    topology = load_topology(machine)
    return plan_graph(topology, parse_gpus(topology, gpus) if gpus else None)


# How links are shared is what the page is about: blocks move whatever links carry.
_WIDE = GENERIC.replace(protocols=tuple(dataclasses.replace(p, block_gbps=None) for p in GENERIC.protocols))


def best(simulator: Simulator, grid: Iterable[Variant], size: int) -> float | None:
    """The highest algbw of the variants over Simple in chunks that large calls use; None where there are none."""
    sound = [v for v in grid if v.protocol == "Simple" and v.chunk_bytes >= LEAST_CHUNK]
    return max((simulator.predict(v, size).algbw_gbps for v in sound), default=None)


def row(machine: str, gpus: str | None, graph: PlanGraph, collective: Collective) -> list[str]:
    simulator = Simulator(graph, collective, None, _WIDE)
    plan = simulator.plan("trees")
    assert plan.bound is not None
    bound = float(plan.bound)
    cells = [f"{machine} {gpus or 'all'}", collective.value, f"{bound:.1f}", str(len(plan.trees))]
    grids: list[Sequence[Variant]] = [variants(simulator, ["trees"]), in_turns(simulator)]
    try:
        simulator.plan("rings")
        grids.append(variants(simulator, ["rings"]))
    except PackingError:
        grids.append(())
    for grid in grids:
        found = [best(simulator, grid, size) for size in SIZES]
        cells += ["-" if algbw is None else f"{algbw / bound:.0%}" for algbw in found]
    return cells


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---|---|" + "--:|" * (len(header) - 2)]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)])


def results() -> str:
    sizes = [f"{size >> 20} MiB" for size in SIZES]
    header = ["GPUs", "collective", "bound GB/s", "trees"]
    header += [f"{name}, {size}" for name in ("one part a block", "in turns", "rings") for size in sizes]
    rows = []
    for machine, gpus in MACHINES:
        graph = graph_of(machine, gpus)
        for collective in COMPILED:
            rows.append(row(machine, gpus, graph, collective))
            print(" ".join(rows[-1]), flush=True)
    return table(header, rows)


def lowered(plan: Plan, graph: PlanGraph, parts: int, slots: int, deal: str) -> tuple[Plan, Program]:
    """The plan in so many parts, with the steps of a GPU's program dealt onto blocks by a pass."""
    cut = spread(plan, parts)
    target = dataclasses.replace(CUDA, chunk_bytes=CHUNK)
    return cut, lower_by(cut, graph, parse_passes(f"fuse_copies,pipeline_hops={slots},{deal}", target), target)


# How parts are dealt onto blocks: one each; taking turns in one order for all; in orders of their own.
ALONE, ONE_ORDER, OWN_ORDERS = "", f"merge_channels={MOST_CHANNELS}", f"take_turns={MOST_CHANNELS}"
_QUICK = _WIDE.replace(
    step_us=0.0, protocols=tuple(dataclasses.replace(p, hop_us=0.0) for p in _WIDE.protocols), name="no latency"
)
FACTORS: tuple[tuple[str, int, int, str, Machine], ...] = (
    ("a block per tree", 0, 8, ALONE, _WIDE),
    ("32 blocks, a part each", 32, 8, ALONE, _WIDE),
    ("the same, no latency, no time per step", 32, 8, ALONE, _QUICK),
    ("the same, 32 slots instead of 8", 32, 32, ALONE, _WIDE),
    ("96 blocks, a part each", 96, 8, ALONE, _WIDE),
    ("32 blocks, 3 parts each, one order for all", TURNS * MOST_CHANNELS, 8, ONE_ORDER, _WIDE),
    ("32 blocks, 3 parts each, orders that differ", TURNS * MOST_CHANNELS, 8, OWN_ORDERS, _WIDE),
    ("the same, 4 slots instead of 8", TURNS * MOST_CHANNELS, 4, OWN_ORDERS, _WIDE),
)


def causes() -> str:
    rows = []
    graphs = [graph_of(machine, gpus) for machine, gpus in FACTORS_ON]
    for name, parts, slots, deal, machine in FACTORS:
        cells = [name]
        for graph in graphs:
            simulator = Simulator(graph, Collective.ALL_REDUCE, None, machine)
            plan = simulator.plan("trees")
            assert plan.bound is not None
            simulator.programs["trees", 1] = lowered(plan, graph, parts, slots, deal)
            found = simulator.predict(Variant("trees", "Simple", CHUNK, 1), SIZE)
            cells.append(f"{found.algbw_gbps / float(plan.bound):.0%}")
        rows.append(cells)
        print(" ".join(cells), flush=True)
    header = ["", *(f"{machine} {gpus or 'all'}" for machine, gpus in FACTORS_ON)]
    return table(header, rows).replace("|---|---|", "|---|--:|", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the document to write")
    arguments = parser.parse_args()
    why = causes()
    text = "\n".join([INTRODUCTION, results(), "", CAUSES + why + "\n" + READING])
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
