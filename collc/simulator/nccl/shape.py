"""The inputs of NCCL's cost model: numbers of servers and GPUs, their links, and the speed of a channel."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from collc.errors import PackingError
from collc.simulator.params import Machine
from collc.topology.model import GraphLink, LinkKind, PlanGraph, VertexKind

FAST = (LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI)


@dataclass(frozen=True)
class Shape:
    """A communicator as NCCL sees it; GB/s are per direction, of payload inside servers, nominal for NICs.

    Args:
        inside_gbps: what the slowest GPU sends to others of its server.
        link_gbps: the same, nominal.
        nics, nic_gbps: of a server: how many, and all together; 0 on one server.
        inside: nvlink or pcie, as NCCL's hops are called.
        nvls: whether every server's GPUs sit on switches that reduce and multicast.
    """

    nranks: int
    servers: int
    inside_gbps: float
    link_gbps: float
    nics: int
    nic_gbps: float
    inside: str
    nvls: bool

    @property
    def per_server(self) -> int:
        """Ranks per server."""
        return self.nranks // self.servers


def servers_of(graph: PlanGraph) -> int:
    """The number of servers, or NVLink domains, that the ranks are in: an NVL72 rack is one."""
    parent = list(range(len(graph.vertices)))

    def find(v: int) -> int:
        while parent[v] != v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    first: dict[str, int] = {}
    for v, server in enumerate(graph.servers):
        if server:
            parent[find(v)] = find(first.setdefault(server, v))
    for link in graph.links:
        if link.kind in FAST:
            parent[find(link.src)] = find(link.dst)
    return len({find(rank) for rank in graph.ranks})


def shape_of(graph: PlanGraph, machine: Machine) -> Shape:
    """The shape of a plan's graph.

    Raises:
        PackingError: the servers have different numbers of GPUs, which the closed forms do not cover.
    """
    servers = servers_of(graph)
    if graph.nranks % servers or (servers > 1 and len(set(Counter(graph.rank_servers).values())) > 1):
        raise PackingError("NCCL's closed form is for servers with equally many GPUs")
    fast = [link for link in graph.links if link.kind in FAST]
    inside = [link for link in fast if link.src < graph.nranks] or [
        link for link in graph.links if link.src < graph.nranks and link.kind is not LinkKind.NET
    ]
    sent = Counter[int]()
    for link in inside:
        sent[link.src] += float(link.gbps)  # type: ignore[assignment]
    nominal = float(min(sent.values())) if sent else 0.0
    share = min((machine.link_class(link.kind).efficiency for link in inside), default=1.0)
    nics = [link for link in graph.links if link.kind is LinkKind.NET and _leaves(graph, link)]
    named = {link.src for link in nics}
    gbps = sum(float(link.gbps) for link in nics)
    switches = [v for v in graph.vertices if v.kind is VertexKind.SWITCH and v.multicast and v.reduce]
    ours = sum(1 for r in graph.ranks if any(link.kind is LinkKind.NVSWITCH and link.src == r for link in graph.links))
    return Shape(
        graph.nranks,
        servers,
        nominal * share,
        nominal,
        -(-len(named) // servers),
        gbps / servers,
        "nvlink" if fast else "pcie",
        bool(switches) and ours == graph.nranks,
    )


def _leaves(graph: PlanGraph, link: GraphLink) -> bool:
    """Returns whether a network link leads from a server's NIC or GPU to a switch of the network."""
    return graph.vertices[link.src].kind is not VertexKind.SWITCH or bool(
        graph.servers[link.src] and not graph.servers[link.dst]
    )
