"""Graphs that the packing benchmark measures: the machines of the literature, one to 128 servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """Servers of 8 GPUs on one switch of `local` GB/s each; NIC j of `nic` GB/s hangs on rail j mod `count`."""
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


def _graph(
    nranks: int, forwarders: int, pairs: Iterable[tuple[int, int, int, LinkKind]], servers: Sequence[str]
) -> PlanGraph:
    """Both directions of every pair (a, b, GB/s, kind)."""
    vertices = [Vertex(f"gpu{i}", VertexKind.GPU) for i in range(nranks)]
    vertices += [Vertex(f"switch{i}", VertexKind.SWITCH) for i in range(forwarders)]
    ends = [(src, dst, gbps, kind) for a, b, gbps, kind in pairs for src, dst in ((a, b), (b, a))]
    links = tuple(GraphLink(i, src, dst, kind, Fraction(gbps)) for i, (src, dst, gbps, kind) in enumerate(ends))
    return PlanGraph("benchmark", nranks, tuple(vertices), tuple(servers), links)
