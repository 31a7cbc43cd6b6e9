"""The graphs that `packing.py` measures: from one machine to thousands of GPUs, whole and with losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import machines

from collc.collectives.model import Collective
from collc.topology.graph import plan_graph
from collc.topology.load import loads_topology
from collc.topology.make import make
from collc.topology.model import LinkKind, PlanGraph

C = Collective


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
    return partial(machines.rails, servers, local=300, nic=25, count=2)


def h100(servers: int) -> Callable[[], PlanGraph]:
    return partial(machines.rails, servers, local=450, nic=50, count=8)


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
        if what == "one GPU's NVLinks":
            links = {x.id for x in graph.links if x.kind is LinkKind.NVSWITCH and 3 in (x.src, x.dst)}
        gone = {"one GPU": [3], "one rail": [9 * FULL + 3]}.get(what, [])
        if what == "a NIC, a GPU and a link":
            gone = [3]
            links = machines.nic_links(graph, 13) | {min(machines.nic_links(graph, 17))}
        return machines.lacking(graph, gone, links)

    return made


LOST = ("one NIC", "one link", "one GPU", "one GPU's NVLinks", "one rail", "three NICs", "a NIC, a GPU and a link")
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
