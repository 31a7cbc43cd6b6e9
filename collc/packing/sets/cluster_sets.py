"""Lists sets of GPUs of a cluster, one for each class of symmetric sets, for `--allocations N..M` on several servers.

Servers with equal links, both inside and to the same switches, are interchangeable and form a class. A set grows only
by GPUs of servers that it already uses and of the first unused server of each class. Two sets are compared by a
canonical labeling of the used servers and one unused server of each class, which is marked with the number of unused
servers. So 64 servers take no longer than the few in use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from collc.errors import PackingError, TopologyError, UsageError
from collc.packing.solvers.network import Net
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.model import GraphLink, Link, LinkKind, PlanGraph, Topology, Vertex, VertexKind

# The most sets that are labeled, including sets that equal others. Sizes up to 5 of 64 x 8 GPUs take 1,700.
MAX_TRIED = 20_000


def only_gpus(topology: Topology, gpus: Collection[str]) -> Topology:
    """Returns the machine without all other GPUs and their links."""
    kept = set(gpus)
    gone = {v.name for v in topology.gpus} - kept
    vertices = tuple(v for v in topology.vertices if v.name not in gone)
    links = tuple(k for k in topology.links if k.src not in gone and k.dst not in gone)
    servers = {s: tuple(m for m in members if m not in gone) for s, members in topology.servers.items()}
    return replace(topology, vertices=vertices, links=links, servers={s: m for s, m in servers.items() if m})


def cluster_sets(
    topology: Topology, sizes: Collection[int], links: str | None
) -> list[tuple[tuple[str, ...], PlanGraph]]:
    """Returns sets of GPUs with their graphs. No symmetry of the cluster maps one set to another.

    Args:
        sizes: the wanted numbers of GPUs.
        links: as in ``--links``.

    Raises:
        UsageError: there are too many sets to look at.
    """
    cluster = _Cluster(topology)
    orbit: list[tuple[str, ...]] = [()]
    found: list[tuple[tuple[str, ...], PlanGraph]] = []
    tried = 0
    for size in range(1, max(sizes, default=0) + 1):
        grown: dict[str, tuple[str, ...]] = {}
        sets = dict.fromkeys(cluster.foremost((*gpus, name)) for gpus in orbit for name in cluster.candidates(gpus))
        for gpus in sets:
            tried += 1
            if tried > MAX_TRIED:
                raise UsageError(
                    f"{topology.name} has more than {MAX_TRIED} sets of up to {size} GPUs to look at",
                    where="--allocations",
                    hint="choose smaller sizes, such as 2..5, name the sets, or say with --free which GPUs are left",
                )
            grown.setdefault(cluster.marked(gpus), gpus)
        orbit = list(grown.values())
        if size in sizes:
            for gpus in orbit:
                graph = _joined(topology, gpus, links)
                if graph is not None:
                    found.append((gpus, graph))
    return found


def _joined(topology: Topology, gpus: Sequence[str], links: str | None) -> PlanGraph | None:
    try:
        graph = plan_graph(topology, gpus, links)
        Net.of(graph).require_connected()
    except (TopologyError, PackingError):
        return None
    return graph


class _Cluster:
    """A topology by servers: the classes of interchangeable servers, and the vertices and links of each server."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.known = {v.name: v for v in topology.vertices}
        self.place = {v.name: i for i, v in enumerate(topology.vertices)}
        self.server = {name: server for server, members in topology.servers.items() for name in members}
        gpus = {v.name for v in topology.gpus}
        self.members = {s: list(m) for s, m in topology.servers.items() if not gpus.isdisjoint(m)}
        self.gpus = {s: [m for m in members if m in gpus] for s, members in self.members.items()}
        self.at = {name: i for members in self.members.values() for i, name in enumerate(members)}
        self.inside: dict[str, list[Link]] = {s: [] for s in self.members}
        self.outside: list[Link] = []
        for link in topology.links:
            one, other = self.server.get(link.src), self.server.get(link.dst)
            if one == other and one in self.inside:
                self.inside[one].append(link)
            else:
                self.outside.append(link)
        self.ways: dict[str, list[Link]] = {s: [] for s in self.members}
        for link in self.outside:
            for server in {self.server.get(link.src), self.server.get(link.dst)} & set(self.members):
                self.ways[str(server)].append(link)
        self.classes = self._classes()
        self.of = {server: number for number, members in enumerate(self.classes) for server in members}

    def _classes(self) -> list[list[str]]:
        """Returns classes of interchangeable servers: equal links inside, and to the same vertices outside."""
        found: dict[object, list[str]] = {}
        for server, members in self.members.items():
            local: dict[str, object] = {name: self.at[name] for name in members}

            kinds = tuple((self.known[m].kind, self.known[m].multicast, self.known[m].reduce) for m in members)
            wires = frozenset(
                (local.get(k.src, k.src), local.get(k.dst, k.dst), k.kind, k.gbps)
                for k in (*self.inside[server], *self.ways[server])
            )
            found.setdefault((kinds, wires), []).append(server)
        return list(found.values())

    def candidates(self, gpus: Sequence[str]) -> list[str]:
        """Returns the GPUs to add: all other GPUs of used servers and of the first unused server of each class."""
        chosen = set(gpus)
        used = {self.server[name] for name in gpus}
        open_servers = [s for s in self.members if s in used]
        open_servers += [
            s for s in (next((s for s in c if s not in used), None) for c in self.classes) if s is not None
        ]
        return [name for server in open_servers for name in self.gpus[server] if name not in chosen]

    def foremost(self, gpus: Sequence[str]) -> tuple[str, ...]:
        """Returns an equivalent set that uses the first servers of each class, in the order of their sets of GPUs."""
        patterns: dict[int, list[tuple[int, ...]]] = {}
        own: dict[str, list[int]] = {}
        for name in gpus:
            own.setdefault(self.server[name], []).append(self.at[name])
        for server, places in own.items():
            patterns.setdefault(self.of[server], []).append(tuple(sorted(places)))
        found = []
        for number, chosen in patterns.items():
            # The server with the most GPUs is first.
            for server, pattern in zip(self.classes[number], sorted(chosen, key=lambda p: (-len(p), p)), strict=False):
                found += [self.members[server][i] for i in pattern]
        return tuple(sorted(found, key=self.place.__getitem__))

    def marked(self, gpus: Sequence[str]) -> str:
        """Returns a text that is equal for sets that a symmetry of the cluster maps to each other."""
        used = list(dict.fromkeys(self.server[name] for name in gpus))
        spare: dict[str, int] = {}
        for members in self.classes:
            left = [s for s in members if s not in used]
            if left:
                spare[left[0]] = len(left)
        here = [*used, *spare]
        inner = {name for server in here for name in self.members[server]}
        names = [*gpus, *(v.name for v in self.topology.vertices if v.name in inner and v.name not in set(gpus))]
        names += [v.name for v in self.topology.vertices if self.server.get(v.name) not in self.members]
        number = {name: i for i, name in enumerate(names)}
        wires = [k for server in here for k in self.inside[server]]
        wires += [k for k in self.outside if k.src in number and k.dst in number]
        ends = [(number[k.src], number[k.dst], k.kind, k.gbps) for k in wires]
        vertices = [self.known[name] for name in names]
        # Each server is a vertex, because plans use other links within a server than between servers. The speed of its
        # extra link encodes the number of unused servers that it represents.
        for server in here:
            at = len(vertices)
            vertices += [Vertex(server, VertexKind.CPU), Vertex(f"count {server}", VertexKind.NIC)]
            ends.append((at, at + 1, LinkKind.C2C, Fraction(1 + spare.get(server, 0))))
            ends += [(number[m], at, LinkKind.C2C, Fraction(1)) for m in self.members[server]]
        graph_links = tuple(GraphLink(i, *end) for i, end in enumerate(ends))
        return fingerprint(
            PlanGraph(self.topology.name, len(gpus), tuple(vertices), ("",) * len(vertices), graph_links)
        )


def with_gpus(topology: Topology) -> list[str]:
    """Returns the names of the servers that have GPUs."""
    gpus = {v.name for v in topology.gpus}
    return [server for server, members in topology.servers.items() if not gpus.isdisjoint(members)]


def one_of_each_class(topology: Topology) -> list[str]:
    """Returns the GPUs of one server of each class of interchangeable servers."""
    cluster = _Cluster(topology)
    return [name for members in cluster.classes for name in cluster.gpus[members[0]]]


def spread(topology: Topology, gpus: Sequence[str]) -> Mapping[str, int]:
    """Returns the number of these GPUs on each server that has some, in the topology's order of servers."""
    server = {name: server for server, members in topology.servers.items() for name in members}
    found: dict[str, int] = {}
    for name in gpus:
        found[server[name]] = found.get(server[name], 0) + 1
    return {s: found[s] for s in topology.servers if s in found}
