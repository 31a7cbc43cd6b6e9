"""Measures the packing: seconds, memory, trees and depth, beside ForestColl. `make bench-packing` runs it.

    python benchmarks/packing.py                      prints the tables
    python benchmarks/packing.py --write FILE         writes them as Markdown
    FORESTCOLL=FOLDER python benchmarks/packing.py    also runs ForestColl's python on the same graphs in the same run

FOLDER is a checkout of github.com/liangyuRain/ForestColl. Every measurement runs in a process of its own, so nothing is
cached, and its peak memory is its own. Rows are kept in `build/packing.jsonl`: a run that was ended goes on from there;
remove the file to measure again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import machines
from packing_cases import CASES, ODD, SCALE, h100
from rows import NOT_MEASURED, Rows

from collc.collectives.model import Collective
from collc.packing import plan
from collc.packing.allocations import connected_allocations
from collc.packing.check import check_packing
from collc.packing.exact import new_problem, problem_bound
from collc.packing.explain import plan_depth
from collc.packing.network import Net
from collc.topology.load import load_topology
from collc.topology.make import make
from collc.topology.model import PlanGraph

C = Collective
LIMIT = 300.0  # seconds of CPU time that any one measurement may take
FORESTCOLL_LIMIT = float(os.environ.get("FORESTCOLL_LIMIT", "120"))


BOUNDS = [("64 GPUs", h100(8), "2.5 s"), ("128 GPUs", h100(16), "7.8 s"), ("256 GPUs", h100(32), "20.4 s")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="write the tables as Markdown to this file")
    parser.add_argument("--only", default="", help="measure only graphs whose name contains this text")
    parser.add_argument("--clusters", type=int, default=100, help="how many random clusters")
    parser.add_argument("--results", type=Path, default=Path("build/packing.jsonl"), help="kept here, and gone on from")
    parser.add_argument("--kept", action="store_true", help="measure nothing: write the rows that are kept")
    options = parser.parse_args()
    folder = os.environ.get("FORESTCOLL")
    rows = Rows(options.results, LIMIT, measure=not options.kept)
    parts = [HEAD.format(cores=os.cpu_count(), limit=LIMIT)]
    parts.append("\n".join(plans(rows, options.only)))
    parts.append("\n".join(beside(rows, options.only, folder)))
    if not options.only:
        parts.append("\n".join(random_clusters(rows, options.clusters)))
        parts += ["\n".join(bounds(rows)), "\n".join(others(rows))]
    text = "\n\n".join(parts) + "\n"
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    else:
        print(text)


HEAD = """# Packing, measured

Written by `make bench-packing` ({cores} cores, one used; Python; HiGHS for floats, flint for rationals). Every row ran
in a process of its own with nothing cached; "over {limit:.0f} s" is one that was ended. Rates and bounds are GB/s of
algbw, exact and proven optimal where both are the same. Depth is hops from the root, for all_reduce of the deeper
phase. Seconds are CPU time of one thread, which other work on the machine changes by some tens of per cent: of the
library from the graph to the plan, its own check included; the last column is the checker alone, once more: all loads,
trees and certificates recomputed in exact arithmetic. MB is the peak of the whole process."""

TEXT = """H100 x N is N servers of 8 GPUs, each GPU with a NIC of 50 GB/s on its rail; A100 x N has rails of 25 GB/s.
"One link" is the way from one GPU into the network; the way back is left. A GPU without NVLinks has its NIC alone.
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


def random_clusters(rows: Rows, count: int) -> list[str]:
    """What the slowest of many random clusters takes, and whether all are proven."""
    found: list[list[str]] = []
    apart = 0
    for seed in itertools.count():
        if len(found) == count:
            break
        name, build = f"random cluster {seed}", partial(machines.random_cluster, seed)
        if not rows.keeps(name) and not machines.joined(build()):
            apart += 1
            continue
        found.append(rows.get(name, partial(planned, build, C.ALL_GATHER)))
    done = sorted(float(cells[3]) for cells in found if len(cells) == 5)
    ended = sum(len(cells) != 5 and cells != NOT_MEASURED for cells in found)
    proven = sum(len(cells) == 5 and "bound" not in cells[0] for cells in found)
    text = (
        f"{len(done) + ended} random clusters of 32 to 512 GPUs, with servers of up to three sizes, 1 to 8 rails and "
    )
    text += f"one to three lost NICs or GPUs; all_gather: {proven} proven optimal. CPU seconds, the check included: "
    text += f"median {statistics.median(done):.2f}, slowest {done[-1]:.2f}." if done else "none."
    text += f" {apart} more draws, in which some GPU has lost its last connection, were left out." if apart else ""
    return ["## Random clusters", "", *textwrap.wrap(text, 119)]


def planned(build: Callable[[], PlanGraph], collective: Collective) -> list[str]:
    graph = build()
    start = time.process_time()
    made = plan(graph, collective)
    seconds = time.process_time() - start
    assert made.rate is not None
    rate = f"{float(made.rate):.2f}" + ("" if made.optimal else f" (bound {float(made.bound or 0):.2f})")
    return [rate, str(len(made.trees)), str(plan_depth(made)), f"{seconds:.2f}", peak()]


def bounds(rows: Rows) -> list[str]:
    """The bound of all_gather alone, proven by a cut."""
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


def others(rows: Rows) -> list[str]:
    """Small machines: every collective, every allocation; and whole commands."""
    head = ["what", "seconds", "MB"]
    lines = ["## One machine, and whole commands", "", *row(head), *row(["---"] * 3)]
    works: list[tuple[str, Callable[[], list[str]]]] = [
        ("DGX-1V, all nine collectives, library", every_collective),
        ("all 46 + 14 allocations of DGX-1V and DGX-1P, five tree collectives", every_allocation),
        ("`collc plan dgx1v --json`, nothing kept", partial(dgx1v_command, 1)),
        ("the same again, solutions kept", partial(dgx1v_command, 2)),
        ("`collc plan --json` of H100 x 2,048, 16,384 GPUs, all_gather", partial(large_command, "plan")),
        ("`collc verify` of that plan", partial(large_command, "verify")),
    ]
    for name, work in works:
        cells = rows.get(f"command: {name}", work)
        lines += row([name, *cells]) if cells != NOT_MEASURED else []
    return lines


def every_collective() -> list[str]:
    graph = machines.machine("dgx1v")
    start = time.process_time()
    for collective in Collective:
        plan(graph, collective)
    return [f"{time.process_time() - start:.2f}", peak()]


def every_allocation() -> list[str]:
    start = time.process_time()
    count = 0
    for name in ("dgx1v", "dgx1p"):
        for allocation in connected_allocations(load_topology(name)):
            count += 1
            for collective in Collective:
                if collective.uses_trees:
                    assert plan(allocation.graph, collective).optimal
    assert count == 60
    return [f"{time.process_time() - start:.2f}", peak()]


def command(arguments: list[str], out: Path, cache: Path) -> list[str]:
    """[CPU seconds, MB] of a command of collc; what it prints goes to `out`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with out.open("wb") as file:
        environment = os.environ | {"COLLC_CACHE": str(cache)}
        subprocess.run([sys.executable, "-m", "collc", *arguments], check=True, stdout=file, env=environment)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return [f"{seconds:.2f}", str(used.ru_maxrss // 1024)]


def dgx1v_command(times: int) -> list[str]:
    """`collc plan dgx1v --json`, the last of so many in a row."""
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(times):
            cells = command(["plan", "dgx1v", "--json"], Path(folder, "plan.json"), Path(folder, "cache"))
    return cells


def large_command(which: str) -> list[str]:
    """`collc plan` of 16,384 GPUs on rails, or `collc verify` of its result."""
    with tempfile.TemporaryDirectory() as folder:
        machine, made, cache = Path(folder, "rails.yaml"), Path(folder, "plan.json"), Path(folder, "cache")
        machine.write_text(make("rails", {"servers": 2048}), encoding="utf-8")
        cells = command(["plan", str(machine), "--collective", "all_gather", "--json"], made, cache)
        return command(["verify", str(made)], Path(folder, "verdict"), cache) if which == "verify" else cells


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
