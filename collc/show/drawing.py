"""The data of a machine for pictures: its vertices, their servers, and its links."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from collc.topology.model import LinkKind, PlanGraph, Topology, Vertex, VertexKind

# The fast links between GPUs, which determine the positions of GPUs in the picture.
FAST = (LinkKind.NVLINK, LinkKind.XGMI)


@dataclass(frozen=True)
class Drawing:
    """The data of a machine for a picture.

    Attributes:
        servers: the vertices of each server, by number. Other vertices, such as network switches or NVSwitches that
            several trays share, are outside.
        links: (source, destination, kind, GB/s), one per directed pair and kind.
        ranks: the vertices that are ranks, in rank order: all GPUs, or the GPUs of an allocation.
    """

    name: str
    vertices: tuple[Vertex, ...]
    servers: Mapping[str, tuple[int, ...]]
    links: tuple[tuple[int, int, LinkKind, Fraction], ...]
    ranks: tuple[int, ...] = field(default=())

    @cached_property
    def outside(self) -> frozenset[int]:
        """The vertices that are in no server."""
        inside = {v for members in self.servers.values() for v in members}
        return frozenset(v for v in range(len(self.vertices)) if v not in inside)

    def links_of(self, server: str | None) -> Sequence[int]:
        """Returns the numbers of the links that a picture of one server may show, or of all links for None.

        These are the links of the server, without links to other servers, and the links between vertices outside the
        servers that have a link to the server.
        """
        return range(len(self.links)) if server is None or len(self.servers) == 1 else self._links_of_servers[server]

    @cached_property
    def _links_of_servers(self) -> Mapping[str, Sequence[int]]:
        home = {v: name for name, members in self.servers.items() for v in members}
        own: dict[str, list[int]] = {name: [] for name in self.servers}
        near: dict[str, set[int]] = {name: set() for name in self.servers}
        upper: dict[int, list[int]] = {}
        for i, (a, b, _, _) in enumerate(self.links):
            names = {home[v] for v in (a, b) if v in home}
            if not names:
                upper.setdefault(a, []).append(i)
            elif len(names) == 1:
                [name] = names
                own[name].append(i)
                near[name] |= self.outside & {a, b}
        for name, switches in near.items():
            own[name] += [i for v in switches for i in upper.get(v, ()) if self.links[i][1] in switches]
        return {name: sorted(links) for name, links in own.items()}

    def label(self, vertex: int, server: str | None) -> str:
        """Returns the name of a vertex, without the name of its server if it is in that server."""
        name = self.vertices[vertex].name
        return name.removeprefix(f"{server}.") or name if server is not None else name

    def to_json(self) -> dict[str, Any]:
        """Returns the machine for the page's script, with kinds as names and speeds as exact text."""
        return {
            "name": self.name,
            "vertices": [[v.name, v.kind.value] for v in self.vertices],
            "links": [[a, b, kind.value, str(gbps)] for a, b, kind, gbps in self.links],
            "ranks": list(self.ranks),
        }


def of_topology(machine: Topology, ranks: Collection[str] | None = None) -> Drawing:
    """Returns the drawing of a whole machine.

    Args:
        ranks: the names of the GPUs of an allocation, in rank order; None for all.
    """
    place = {v.name: i for i, v in enumerate(machine.vertices)}
    chosen = [v.name for v in machine.gpus] if ranks is None else ranks
    return Drawing(
        machine.name,
        machine.vertices,
        {name: tuple(place[v] for v in members) for name, members in machine.servers.items()},
        tuple((place[x.src], place[x.dst], x.kind, x.gbps) for x in machine.links),
        tuple(place[name] for name in chosen),
    )


def of_graph(graph: PlanGraph) -> Drawing:
    """Returns the drawing of exactly the graph of a plan."""
    servers: dict[str, list[int]] = {}
    for v, server in enumerate(graph.servers):
        if server:
            servers.setdefault(server, []).append(v)
    return Drawing(
        graph.name,
        graph.vertices,
        {name: tuple(members) for name, members in servers.items()},
        tuple((x.src, x.dst, x.kind, x.gbps) for x in graph.links),
        tuple(graph.ranks),
    )


def around_graph(machine: Topology, graph: PlanGraph) -> Drawing:
    """Returns the drawing of the part of a machine for the picture of a plan.

    It has the plan's graph, and idle parts of its servers: other GPUs, and links of its classes between them.
    """
    used = {v.name for v in graph.vertices}
    classes = {x.kind for x in graph.links}
    home = {name: server for server, members in machine.servers.items() for name in members}
    servers = {home[name] for name in used if name in home}
    kept = [v for v in machine.vertices if v.name in used or (v.kind is VertexKind.GPU and home.get(v.name) in servers)]
    names = {v.name for v in kept}
    planned = {(graph.vertices[x.src].name, graph.vertices[x.dst].name, x.kind) for x in graph.links}
    links = [
        x
        for x in machine.links
        if {x.src, x.dst} <= names
        and ((x.src, x.dst, x.kind) in planned or (x.kind in classes and x.kind in (*FAST, LinkKind.NVSWITCH)))
    ]
    part = Topology(
        machine.name,
        tuple(kept),
        tuple(links),
        {
            server: tuple(name for name in members if name in names)
            for server, members in machine.servers.items()
            if server in servers
        },
    )
    return of_topology(part, [graph.vertices[r].name for r in graph.ranks])
