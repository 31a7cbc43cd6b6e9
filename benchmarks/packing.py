"""Measures the packing: seconds, memory, trees and depth, beside ForestColl. `make bench-packing` runs it.

    python benchmarks/packing.py                      prints the tables
    python benchmarks/packing.py --write FILE         writes them as data (tables.py)
    FORESTCOLL=FOLDER python benchmarks/packing.py    also runs ForestColl's python on the same graphs in the same run

FOLDER is a checkout of github.com/liangyuRain/ForestColl. Every measurement runs in a new process, so nothing is
cached, and its peak memory counts separately. Rows are kept in `build/packing.jsonl`: a run that was ended continues;
remove the file to measure again.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measured import publish
from packing_cases import CASES, ODD, SCALE, h100
from rows import NOT_MEASURED, Rows

from collc.collectives.model import Collective
from collc.packing import plan
from collc.packing.check import check_packing
from collc.packing.explain import plan_depth
from collc.packing.solvers.exact import new_problem, problem_bound
from collc.packing.solvers.network import Net
from collc.topology.model import PlanGraph

C = Collective
LIMIT = 300.0  # seconds of CPU time that any one measurement may take
FORESTCOLL_LIMIT = float(os.environ.get("FORESTCOLL_LIMIT", "120"))


BOUNDS = [("64 GPUs", h100(8), "2.5 s"), ("128 GPUs", h100(16), "7.8 s"), ("256 GPUs", h100(32), "20.4 s")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="write the tables as Markdown to this file")
    parser.add_argument("--only", default="", help="measure only graphs whose name contains this text")
    parser.add_argument("--results", type=Path, default=Path("build/packing.jsonl"), help="kept here, and gone on from")
    parser.add_argument("--kept", action="store_true", help="measure nothing: write the rows that are kept")
    options = parser.parse_args()
    folder = os.environ.get("FORESTCOLL")
    rows = Rows(options.results, LIMIT, measure=not options.kept)
    parts = [HEAD.format(limit=LIMIT)]
    parts.append("\n".join(plans(rows, options.only)))
    parts.append("\n".join(beside(rows, options.only, folder)))
    if not options.only:
        parts.append("\n".join(bounds(rows)))
    text = "\n\n".join(parts) + "\n"
    publish(text, options.write)


HEAD = """# Packing, measured

HiGHS solves in floats, flint in rationals. Every row ran in a process of its own with nothing cached; "over
{limit:.0f} s" is one that was ended. Rates and bounds are GB/s of algbw, exact and proven optimal where both are the
same. Depth is hops from the root, for all_reduce of the deeper phase. Seconds are CPU time of one thread, which other
work on the machine changes by some tens of per cent: of the library from the graph to the plan, its own check included;
the last column is a second run of the checker: all loads, trees and certificates recomputed in exact arithmetic. MB is
the peak of the whole process."""

TEXT = """H100 x N is N servers of 8 GPUs, each GPU with a NIC of 50 GB/s on its rail; A100 x N has rails of 25 GB/s.
"One link" is the way from one GPU into the network; the way back is left. A GPU without NVLinks has only its NIC.
Plans with orbits are up to symmetry: "trees" is how many the orbits stand for. Fat trees are those of
`collc topologies --make fat-tree`: 128 GPUs with 8 ports and servers of 8 (each across two edge switches), 1,024 with
16 and 8, 2,000 with 20 and 1, 8,192 with 32 and 8, 16,000 with 40 and 4."""

COLUMNS = ["graph", "collective", "rate", "bound", "orbits", "trees", "depth", "seconds", "MB", "checker's seconds"]


def plans(rows: Rows, only: str) -> list[str]:
    """A row per graph and collective, by the number of GPUs."""
    lines = ["## Certified plans", "", TEXT, "", *row(COLUMNS), *row(["---"] * len(COLUMNS))]
    made: list[tuple[int, list[str]]] = []
    missing: list[str] = []
    size = 0
    for case in [*CASES, *ODD, *SCALE]:
        for collective in case.collectives if only in case.name else ():
            work = partial(checked, case.graph, collective, orbits=case.orbits)
            cells = rows.get(f"plan {case.name}: {collective.value}{' by orbits' * case.orbits}", work)
            if cells == NOT_MEASURED:
                missing.append(f"{case.name}: {collective.value}")
                continue
            told = len(cells) == len(COLUMNS) - 1
            named = re.search(r"([\d,]+) (GPUs|dies)", case.name)
            # A row that was ended does not tell its size; without a name it goes with the one before.
            size = int(named[1].replace(",", "")) if named else int(cells[0]) if told else size
            shown = cells[1:] if told else [cells[0], *[""] * (len(COLUMNS) - 3)]
            made.append((size, [case.name, collective.value, *shown]))
    for _, cells in sorted(made, key=lambda pair: pair[0]):
        lines += row(cells)
    return [*lines, "", *textwrap.wrap(f"Not measured: {'; '.join(missing)}.", 119)] if missing else lines


def beside(rows: Rows, only: str, folder: str | None) -> list[str]:
    """all_gather beside ForestColl's python on the same graph, one after the other in the same run."""
    head = ["graph", "rate", "trees", "depth", "seconds", "MB", "ForestColl: rate", "trees", "depth", "seconds"]
    head += ["ratio", "ForestColl, published"]
    lines = ["## Beside ForestColl: all_gather", "", BESIDE.format(limit=FORESTCOLL_LIMIT), ""]
    lines += [*row(head), *row(["---"] * len(head))]
    for case in CASES:
        name = f"{case.name}: ForestColl"
        if only not in case.name or not (case.published or folder or rows.keeps(name)):
            continue
        ours = rows.get(f"{case.name}: all_gather", partial(planned, case.graph, C.ALL_GATHER))
        seconds = float(ours[3]) if len(ours) == 5 else None
        ours = ours if seconds else [*ours, *[""] * 4]
        theirs = ["", "", "", ""]
        if folder or rows.keeps(name):
            theirs = rows.get(name, partial(forestcoll, case.graph, folder or ""), FORESTCOLL_LIMIT)
        lines += row([case.name, *ours, *peers(theirs, seconds), case.published])
    return lines


BESIDE = """ForestColl's public python (search, switch removal and packing; no checker) on the same graph, right after
ours in one run, ended after {limit:.0f} s of CPU time; the ratio is of the seconds, theirs over ours. "Published" is
what it took on another machine with two cores; for 1,024 GPUs what its paper states (arXiv 2402.06787)."""


def checked(build: Callable[[], PlanGraph], collective: Collective, *, orbits: bool) -> list[str]:
    """[GPUs, rate, bound, orbits, trees, depth, seconds, MB, the checker's seconds]."""
    graph = build()
    start = time.process_time()
    made = plan(graph, collective, orbits=orbits)
    seconds = time.process_time() - start
    assert made.rate is not None
    assert made.bound is not None
    again = time.process_time()
    check_packing(graph, made)
    checker = time.process_time() - again
    count = str(len(made.orbits.orbits)) if made.orbits is not None else ""
    cells = [str(graph.nranks), f"{float(made.rate):.2f}", f"{float(made.bound):.2f}", count, str(made.tree_count)]
    return [*cells, str(plan_depth(made)), f"{seconds:.2f}", peak(), f"{checker:.2f}"]


def planned(build: Callable[[], PlanGraph], collective: Collective) -> list[str]:
    graph = build()
    start = time.process_time()
    made = plan(graph, collective)
    seconds = time.process_time() - start
    assert made.rate is not None
    rate = f"{float(made.rate):.2f}" + ("" if made.optimal else f" (bound {float(made.bound or 0):.2f})")
    return [rate, str(len(made.trees)), str(plan_depth(made)), f"{seconds:.2f}", peak()]


def bounds(rows: Rows) -> list[str]:
    """Returns the rows of bounds without a plan, for all_gather, proven by a cut."""
    head = ["graph", "bound", "seconds", "ForestColl, published"]
    lines = ["## Bounds alone: all_gather on H100 servers", "", *row(head), *row(["---"] * 4)]
    for name, graph, published in BOUNDS:
        lines += row([name, *rows.get(f"bound: {name}", partial(bounded, graph)), published])
    return lines


def bounded(build: Callable[[], PlanGraph]) -> list[str]:
    graph = build()
    start = time.process_time()
    problem = new_problem(Net.of(graph), C.ALL_GATHER, None, graph.servers)
    value, _ = problem_bound(problem, graph.servers)
    return [str(value), f"{time.process_time() - start:.2f}"]


def forestcoll(build: Callable[[], PlanGraph], folder: str) -> list[str]:
    """ForestColl's python on the same graph: [rate, trees, depth, seconds]."""
    import networkx

    graph = build()

    sys.path.insert(0, folder)
    import pipeline_allgather  # type: ignore[import-not-found]

    topology: networkx.DiGraph[tuple[int, int]] = networkx.DiGraph()
    # It sorts vertices, so all names are of one kind.
    label = {v: (0 if v < graph.nranks else -1, v) for v in range(len(graph.vertices))}
    for link in graph.links:
        topology.add_edge(label[link.src], label[link.dst], capacity=float(link.gbps))
    gpus = [label[v] for v in graph.ranks]
    start = time.process_time()
    found = pipeline_allgather.optimal_pipeline_spanning_trees(topology, compute_nodes=gpus)
    seconds = time.process_time() - start
    (use, count), (trees, _) = found
    deepest = 0
    for (root, _), paths in trees.items():
        hops = networkx.DiGraph([(path[0][0], path[-1][-1]) for path in paths])
        deepest = max(deepest, *networkx.single_source_shortest_path_length(hops, root).values())
    return [f"{graph.nranks * count / use:.2f}", str(len(trees)), str(deepest), f"{seconds:.2f}"]


def peers(theirs: list[str], ours: float | None) -> list[str]:
    """The cells of ForestColl's rate, trees, depth, seconds and ratio."""
    if len(theirs) != 4:
        return ["", "", "", theirs[0], f"over {FORESTCOLL_LIMIT / ours:.0f}" if ours else ""]
    return [*theirs, f"{float(theirs[3]) / ours:.0f}" if ours and theirs[3] else ""]


def peak() -> str:
    return str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def row(cells: list[str]) -> list[str]:
    return ["| " + " | ".join(cells) + " |"]


if __name__ == "__main__":
    main()
