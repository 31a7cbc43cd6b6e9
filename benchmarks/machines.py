"""Graphs that the packing benchmark measures: the machines of the literature, one to 128 servers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import GraphLink, LinkKind, PlanGraph, Vertex, VertexKind

# xGMI links between the 16 dies of an MI250 server, in links of 50 GB/s. Source: AMD, "AMD CDNA 2 architecture" white
# paper (2021), and topologies.py of ForestColl (github.com/liangyuRain/ForestColl), whose figures we compare with.
_MI250 = (
    "0-1x4 0-4x2 0-8x1 1-5x1 1-9x1 1-10x1 2-3x4 2-6x1 2-9x1 2-10x1 3-7x2 3-11x1 4-5x4 4-6x1 5-6x1 5-7x1 6-7x4 "
    "8-9x4 8-12x2 9-13x1 10-11x4 10-14x1 11-15x2 12-13x4 12-14x1 13-14x1 13-15x1 14-15x4"
)


def machine(name: str) -> PlanGraph:
    """A machine of the zoo, all its GPUs."""
    return plan_graph(load_topology(name))


def rails(servers: int, *, local: int, nic: int, count: int) -> PlanGraph:
    """Servers of 8 GPUs on one switch of `local` GB/s each; NIC j of `nic` GB/s is on rail j mod `count`."""
    n = 8 * servers
    pairs: list[tuple[int, int, int, LinkKind]] = [(v, n + v // 8, local, LinkKind.NVSWITCH) for v in range(n)]
    spare = 0
    if servers > 1:
        spare = count
        pairs += [(v, n + servers + v % count, nic, LinkKind.NET) for v in range(n)]
    where = [f"server{v // 8}" for v in range(n)] + [f"server{s}" for s in range(servers)] + ["fabric"] * spare
    return _graph(n, servers + spare, pairs, where)


def mi250(servers: int) -> PlanGraph:
    """Servers of 16 dies joined by xGMI, each die with 16 GB/s to one network switch."""
    n = 16 * servers
    pairs = []
    for word in _MI250.split():
        ends, count = word.split("x")
        a, b = map(int, ends.split("-"))
        pairs += [(s * 16 + a, s * 16 + b, 50 * int(count), LinkKind.XGMI) for s in range(servers)]
    if servers > 1:
        pairs += [(v, n, 16, LinkKind.NET) for v in range(n)]
    where = [f"server{v // 16}" for v in range(n)] + ["fabric"] * (servers > 1)
    return _graph(n, int(servers > 1), pairs, where)


def cluster(sizes: Sequence[int], *, rails: int = 8, local: int = 450, nic: int = 50) -> PlanGraph:
    """Servers of these sizes: GPUs on a switch of their server (a single GPU has none), GPU j on rail j mod `rails`."""
    n = sum(sizes)
    switches = [s for s, size in enumerate(sizes) if size > 1]
    pairs: list[tuple[int, int, int, LinkKind]] = []
    where: list[str] = []
    for s, size in enumerate(sizes):
        for j in range(size):
            if size > 1:
                pairs.append((len(where), n + switches.index(s), local, LinkKind.NVSWITCH))
            pairs.append((len(where), n + len(switches) + j % rails, nic, LinkKind.NET))
            where.append(f"server{s}")
    where += [*(f"server{s}" for s in switches), *["fabric"] * rails]
    return _graph(n, len(switches) + rails, pairs, where)


def torus(*sides: int) -> PlanGraph:
    """A torus of GPUs with 50 GB/s to each neighbor."""
    n = math.prod(sides)
    pairs: list[tuple[int, int, int, LinkKind]] = []
    stride = 1
    for side in sides:
        for v in range(n):
            digit = v // stride % side
            pairs.append((v, v + ((digit + 1) % side - digit) * stride, 50, LinkKind.NVLINK))
        stride *= side
    return _graph(n, 0, pairs, ["server0"] * n)


def hypercube(dimensions: int) -> PlanGraph:
    """A hypercube of GPUs with 50 GB/s to each neighbor."""
    n = 1 << dimensions
    pairs = [(v, v | 1 << k, 50, LinkKind.NVLINK) for v in range(n) for k in range(dimensions) if not v >> k & 1]
    return _graph(n, 0, pairs, ["server0"] * n)


def lacking(graph: PlanGraph, vertices: Iterable[int] = (), links: Iterable[int] = ()) -> PlanGraph:
    """The graph without these vertices and links."""
    gone, cut = set(vertices), set(links)
    kept = [v for v in range(len(graph.vertices)) if v not in gone]
    place = {v: i for i, v in enumerate(kept)}
    left = [x for x in graph.links if x.id not in cut and x.src in place and x.dst in place]
    return replace(
        graph,
        nranks=sum(v < graph.nranks for v in kept),
        vertices=tuple(graph.vertices[v] for v in kept),
        servers=tuple(graph.servers[v] for v in kept),
        links=tuple(replace(x, id=i, src=place[x.src], dst=place[x.dst]) for i, x in enumerate(left)),
    )


def nic_links(graph: PlanGraph, gpu: int) -> set[int]:
    """The links between a GPU and the network."""
    return {x.id for x in graph.links if x.kind is LinkKind.NET and gpu in (x.src, x.dst)}


def _graph(
    nranks: int, forwarders: int, pairs: Iterable[tuple[int, int, int, LinkKind]], servers: Sequence[str]
) -> PlanGraph:
    """Both directions of every pair (a, b, GB/s, kind)."""
    vertices = [Vertex(f"gpu{i}", VertexKind.GPU) for i in range(nranks)]
    vertices += [Vertex(f"switch{i}", VertexKind.SWITCH) for i in range(forwarders)]
    ends = [(src, dst, gbps, kind) for a, b, gbps, kind in pairs for src, dst in ((a, b), (b, a))]
    links = tuple(GraphLink(i, src, dst, kind, Fraction(gbps)) for i, (src, dst, gbps, kind) in enumerate(ends))
    return PlanGraph("benchmark", nranks, tuple(vertices), tuple(servers), links)
