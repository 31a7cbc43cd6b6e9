"""Plan graphs built by hand for the tests of packing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from collc.topology.model import GraphLink, LinkKind, PlanGraph, Vertex, VertexKind

# NVLinks between the GPUs of a DGX-1 with V100s, from its published `nvidia-smi topo -m`; P100s have one each.
DGX1V = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def graph(
    nranks: int,
    links: Iterable[tuple[int, int, Fraction | int | str]],
    *,
    forwarders: int = 0,
    name: str = "test",
    servers: Sequence[str] | None = None,
    kinds: Sequence[LinkKind] | None = None,
) -> PlanGraph:
    """Directed links (src, dst, gbps) between ranks 0..nranks-1 and forwarders after them."""
    vertices = [Vertex(f"gpu{i}", VertexKind.GPU) for i in range(nranks)]
    vertices += [Vertex(f"sw{i}", VertexKind.SWITCH) for i in range(forwarders)]
    made = [
        GraphLink(i, src, dst, kinds[i] if kinds else LinkKind.NVLINK, Fraction(gbps))
        for i, (src, dst, gbps) in enumerate(links)
    ]
    where = tuple(servers) if servers else ("server0",) * len(vertices)
    return PlanGraph(name, nranks, tuple(vertices), where, tuple(made))


def both(pairs: Iterable[tuple[int, int, Fraction | int | str]]) -> list[tuple[int, int, Fraction | int | str]]:
    """Each undirected (a, b, gbps) as two directed links."""
    return [link for a, b, gbps in pairs for link in ((a, b, gbps), (b, a, gbps))]


def dgx1(gpus: Sequence[int] = range(8), *, volta: bool = True) -> PlanGraph:
    """A DGX-1V (25 GB/s per NVLink) or DGX-1P (20), or an allocation of one: rank i is gpus[i]."""
    place = {gpu: i for i, gpu in enumerate(gpus)}
    pairs = [
        (place[a], place[b], 25 * count if volta else 20)
        for (a, b), count in DGX1V.items()
        if a in place and b in place
    ]
    return graph(len(place), both(pairs), name="dgx1v" if volta else "dgx1p")


def star(nranks: int, gbps: int | Fraction = 150) -> PlanGraph:
    """GPUs on one switch."""
    return graph(nranks, both((i, nranks, gbps) for i in range(nranks)), forwarders=1, name="star")


def planes(nranks: int, count: int, gbps: int | Fraction = 25) -> PlanGraph:
    """GPUs on several equal switches."""
    return graph(nranks, both((i, nranks + p, gbps) for p in range(count) for i in range(nranks)), forwarders=count)


def rails(servers: int, per_server: int, local: int = 300, nic: int = 25) -> PlanGraph:
    """Servers with one local switch each. GPU j of every server also has a link to rail j % 2, a network switch."""
    n = servers * per_server
    pairs: list[tuple[int, int, Fraction | int | str]] = []
    for s in range(servers):
        for j in range(per_server):
            pairs.append((s * per_server + j, n + s, local))
    rail = n + servers
    if servers > 1:
        pairs += [(s * per_server + j, rail + j % 2, nic) for s in range(servers) for j in range(per_server)]
    where = [f"server{v // per_server}" for v in range(n)] + [f"server{s}" for s in range(servers)]
    spare = 2 if servers > 1 else 0
    return graph(n, both(pairs), forwarders=servers + spare, name="rails", servers=where + ["fabric"] * spare)


def cluster(sizes: Sequence[int], *, rails: int = 8, local: int = 450, nic: int = 50) -> PlanGraph:
    """Servers of these sizes: GPUs of a server share a switch (a single GPU has none), GPU j is on rail j % rails"""
    n = sum(sizes)
    links: list[tuple[int, int, Fraction | int | str]] = []
    kinds: list[LinkKind] = []
    where: list[str] = []
    switches = [f"server{s}" for s, size in enumerate(sizes) if size > 1]
    for s, size in enumerate(sizes):
        for j in range(size):
            gpu = len(where)
            where.append(f"server{s}")
            ends = [(n + switches.index(f"server{s}"), local, LinkKind.NVSWITCH)] if size > 1 else []
            for other, gbps, kind in [*ends, (n + len(switches) + j % rails, nic, LinkKind.NET)]:
                links += both([(gpu, other, gbps)])
                kinds += [kind, kind]
    servers = [*where, *switches, *["fabric"] * rails]
    return graph(n, links, forwarders=len(switches) + rails, name="cluster", servers=servers, kinds=kinds)


def lacking(machine: PlanGraph, vertices: Iterable[int] = (), links: Iterable[int] = ()) -> PlanGraph:
    """`machine` without these vertices and links."""
    gone, cut = set(vertices), set(links)
    kept = [v for v in range(len(machine.vertices)) if v not in gone]
    place = {v: i for i, v in enumerate(kept)}
    left = [x for x in machine.links if x.id not in cut and x.src in place and x.dst in place]
    return replace(
        machine,
        nranks=sum(v < machine.nranks for v in kept),
        vertices=tuple(machine.vertices[v] for v in kept),
        servers=tuple(machine.servers[v] for v in kept),
        links=tuple(replace(x, id=i, src=place[x.src], dst=place[x.dst]) for i, x in enumerate(left)),
    )


def nic_links(machine: PlanGraph, gpu: int) -> set[int]:
    """The links between a GPU and the network."""
    return {x.id for x in machine.links if x.kind is LinkKind.NET and gpu in (x.src, x.dst)}
