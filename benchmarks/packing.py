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
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import machines
from rows import Rows

from collc.collectives.model import Collective
from collc.packing import plan
from collc.packing.allocations import connected_allocations
from collc.packing.check import check_packing
from collc.packing.exact import new_problem, problem_bound
from collc.packing.explain import plan_depth
from collc.packing.network import Net
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology, loads_topology
from collc.topology.make import make
from collc.topology.model import PlanGraph

C = Collective
LIMIT = 300.0  # seconds of CPU time that any one measurement may take
FORESTCOLL_LIMIT = float(os.environ.get("FORESTCOLL_LIMIT", "120"))


@dataclass(frozen=True)
class Case:
    """A graph, the collectives that are planned on it, and how.

    Args:
        published: what ForestColl's public python took for its all_gather on a machine with two cores.
        orbits: plan up to symmetry.
    """

    name: str
    graph: Callable[[], PlanGraph]
    published: str = ""
    collectives: tuple[C, ...] = (C.ALL_GATHER, C.ALL_REDUCE, C.BROADCAST)
    orbits: bool = False


def a100(servers: int) -> Callable[[], PlanGraph]:
    return lambda: machines.rails(servers, local=300, nic=25, count=2)


def h100(servers: int) -> Callable[[], PlanGraph]:
    return lambda: machines.rails(servers, local=450, nic=50, count=8)


CASES = [
    Case("DGX-1V, 8 GPUs", lambda: machines.machine("dgx1v"), "0.07 s, 22 trees, depth 5"),
    Case("DGX-1P, 8 GPUs", lambda: machines.machine("dgx1p")),
    Case("DGX-2, 16 GPUs", lambda: machines.machine("dgx2"), "0.75 s, depth 15"),
    Case("MI250, 16 dies", lambda: machines.mi250(1)),
    Case("MI250 x 2, 32 dies", lambda: machines.mi250(2), "33 s"),
    Case("A100 x 2, 16 GPUs", a100(2), "4.0 s"),
    Case("A100 x 3, 24 GPUs", a100(3), "14 s"),
    Case("A100 x 4, 32 GPUs", a100(4), "38 s"),
    Case("A100 x 8, 64 GPUs", a100(8), "over 320 s"),
    Case("H100 x 2, 16 GPUs", h100(2)),
    Case("H100 x 4, 32 GPUs", h100(4), "27 s"),
    Case("H100 x 32, 256 GPUs", h100(32)),
    Case("A100 x 128, 1,024 GPUs", a100(128), "about 36 minutes (its paper, Java)"),
]
FULL = 64


def lost(what: str) -> Callable[[], PlanGraph]:
    """64 servers of 8 H100 with something missing."""

    def made() -> PlanGraph:
        graph = machines.cluster([8] * FULL)
        nics = {"one NIC": [3], "three NICs": [3, 13, 17]}.get(what, [])
        links = {x for gpu in nics for x in machines.nic_links(graph, gpu)}
        if what == "one link":
            links = {min(machines.nic_links(graph, 3))}
        gone = {"one GPU": [3], "one rail": [9 * FULL + 3]}.get(what, [])
        if what == "a NIC, a GPU and a link":
            gone = [3]
            links = machines.nic_links(graph, 13) | {min(machines.nic_links(graph, 17))}
        return machines.lacking(graph, gone, links)

    return made


LOST = ("one NIC", "one link", "one GPU", "one rail", "three NICs", "a NIC, a GPU and a link")
FOUR = (C.ALL_GATHER, C.REDUCE_SCATTER, C.ALL_REDUCE, C.BROADCAST)
ROOTED = (C.BROADCAST, C.REDUCE)
ODD = [
    *(Case(f"H100 x 64, 512 GPUs, less {what}", lost(what), collectives=FOUR) for what in LOST),
    Case("servers of 1 to 8 GPUs, one rail", lambda: machines.cluster(range(1, 9), rails=1), collectives=FOUR),
    Case("torus 8 x 8", lambda: machines.torus(8, 8), collectives=ROOTED),
    Case("torus 16 x 16", lambda: machines.torus(16, 16), collectives=ROOTED),
    Case("hypercube, 256 GPUs", lambda: machines.hypercube(8), collectives=ROOTED),
]


def many(servers: int, what: str = "") -> Callable[[], PlanGraph]:
    """Servers of 8 H100 on 8 rails, whole or with one odd server."""

    def made() -> PlanGraph:
        graph = machines.cluster([8] * servers)
        if what == "one GPU":
            return machines.lacking(graph, [3])
        return machines.lacking(graph, links=machines.nic_links(graph, 3)) if what == "one NIC" else graph

    return made


def tree(ports: int, gpus: int, what: str = "") -> Callable[[], PlanGraph]:
    """A fat tree of servers of `gpus` H100, whole or with one odd server."""

    def made() -> PlanGraph:
        graph = plan_graph(loads_topology(make("fat-tree", {"ports": ports, "gpus": gpus})))
        if what == "one GPU":
            return machines.lacking(graph, [3])
        return machines.lacking(graph, links=machines.nic_links(graph, 3)) if what == "one NIC" else graph

    return made


TREES = {128: (8, 8), 1024: (16, 8), 2000: (20, 1), 8192: (32, 8), 16000: (40, 4)}  # GPUs: ports, GPUs of a server
SCALE = [
    *(Case(f"H100 x {n:,}, {8 * n:,} GPUs", many(n), orbits=True) for n in (32, 64, 128, 256, 512, 1024, 2048)),
    *(
        Case(f"H100 x {n:,}, {8 * n:,} GPUs, less {what}", many(n, what), orbits=True)
        for n in (256, 2048)
        for what in ("one NIC", "one GPU")
    ),
    *(Case(f"fat tree, {n:,} GPUs", tree(*sizes), orbits=True) for n, sizes in TREES.items()),
    *(
        Case(f"fat tree, {n:,} GPUs, less {what}", tree(*TREES[n], what), orbits=True)
        for n in (128, 1024, 16000)
        for what in ("one NIC", "one GPU")
    ),
]
BOUNDS = [("64 GPUs", h100(8), "2.5 s"), ("128 GPUs", h100(16), "7.8 s"), ("256 GPUs", h100(32), "20.4 s")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="write the tables as Markdown to this file")
    parser.add_argument("--only", default="", help="measure only graphs whose name contains this text")
    parser.add_argument("--clusters", type=int, default=100, help="how many random clusters")
    parser.add_argument("--results", type=Path, default=Path("build/packing.jsonl"), help="kept here, and gone on from")
    options = parser.parse_args()
    folder = os.environ.get("FORESTCOLL")
    rows = Rows(options.results, LIMIT)
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
Plans with orbits are up to symmetry: "trees" is how many the orbits stand for. Fat trees are those of
`collc topologies --make fat-tree`: 128 GPUs with 8 ports and servers of 8 (each across two edge switches), 1,024 with
16 and 8, 2,000 with 20 and 1, 8,192 with 32 and 8, 16,000 with 40 and 4."""

COLUMNS = ["graph", "collective", "rate", "bound", "orbits", "trees", "depth", "seconds", "MB", "checker's seconds"]


def plans(rows: Rows, only: str) -> list[str]:
    """A row per graph and collective, by the number of GPUs."""
    lines = ["## Certified plans", "", TEXT, "", *row(COLUMNS), *row(["---"] * len(COLUMNS))]
    made: list[tuple[int, list[str]]] = []
    size = 0
    for case in [*CASES, *ODD, *SCALE]:
        for collective in case.collectives if only in case.name else ():
            work = partial(checked, case.graph, collective, orbits=case.orbits)
            cells = rows.get(f"plan {case.name}: {collective.value}{' by orbits' * case.orbits}", work)
            # A row that was ended does not know its size; it goes with the one before.
            size = int(cells[0]) if len(cells) == len(COLUMNS) - 1 else size
            shown = cells[1:] if len(cells) == len(COLUMNS) - 1 else [*cells, *[""] * (len(COLUMNS) - 2 - len(cells))]
            made.append((size, [case.name, collective.value, *shown]))
    for _, cells in sorted(made, key=lambda pair: pair[0]):
        lines += row(cells)
    return lines


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
        theirs = ["", "", "", ""]
        if folder or rows.keeps(name):
            theirs = rows.get(name, partial(forestcoll, case.graph, folder or ""), FORESTCOLL_LIMIT)
        lines += row([case.name, *ours, *peers(theirs, float(ours[3]) if len(ours) == 5 else None), case.published])
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
    found = []
    for seed in range(count):
        build = partial(machines.random_cluster, seed)
        found.append(rows.get(f"random cluster {seed}", partial(planned, build, C.ALL_GATHER)))
    done = sorted(float(cells[3]) for cells in found if len(cells) == 5)
    proven = sum(len(cells) == 5 and "bound" not in cells[0] for cells in found)
    text = f"{count} random clusters of 32 to 512 GPUs, all_gather: {proven} proven optimal; CPU seconds: "
    return [
        "## Random clusters",
        "",
        text + (f"median {statistics.median(done)}, slowest {done[-1]}" if done else "none"),
    ]


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
    """Small machines: every collective, every allocation, the command."""
    head = ["what", "seconds"]
    lines = ["## One machine", "", *row(head), *row(["---"] * 2)]
    works = [
        ("DGX-1V, all nine collectives, library", every_collective),
        ("the same as a command: `collc plan dgx1v`", command),
        ("all 46 + 14 allocations of DGX-1V and DGX-1P, five tree collectives", every_allocation),
    ]
    for name, work in works:
        lines += row([name, *rows.get(name, work)])
    return lines


def every_collective() -> list[str]:
    graph = machines.machine("dgx1v")
    start = time.process_time()
    for collective in Collective:
        plan(graph, collective)
    return [f"{time.process_time() - start:.2f}"]


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
    return [f"{time.process_time() - start:.2f}"]


def command() -> list[str]:
    subprocess.run([sys.executable, "-m", "collc", "plan", "dgx1v"], check=True, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [f"{used.ru_utime + used.ru_stime:.2f}"]


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
        return ["", "", "", theirs[0], f"over {FORESTCOLL_LIMIT / ours:.0f}" if ours and "over" in theirs[0] else ""]
    return [*theirs, f"{float(theirs[3]) / ours:.0f}" if ours and theirs[3] else ""]


def peak() -> str:
    return str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def row(cells: list[str]) -> list[str]:
    return ["| " + " | ".join(cells) + " |"]


if __name__ == "__main__":
    main()
