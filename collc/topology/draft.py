"""The mutable topology that the loader builds from a file, its base and its templates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from collc.errors import TopologyError
from collc.topology.fields import Speed
from collc.topology.model import Device, Link, LinkKind, Topology, Vertex, VertexKind
from collc.topology.names import name_problem

MAX_VERTICES = 65536
# One direction of one kind between two vertices is a link. 4,096 GPUs in racks of 72 have 150,000 links.
MAX_LINKS = 262_144
DEFAULT_SERVER = "server0"


@dataclass
class Draft:
    """Vertices and links by name, in the order of the file.

    `servers` is None as long as the file names no server: then one server has all vertices.
    """

    vertices: dict[str, Vertex] = field(default_factory=dict)
    links: dict[tuple[str, str, LinkKind], Link] = field(default_factory=dict)
    servers: dict[str, tuple[str, ...]] | None = None
    speeds: dict[LinkKind, Speed] = field(default_factory=dict)
    gpu_model: str | None = None
    models: dict[str, str] = field(default_factory=dict)
    assumes: dict[LinkKind, None] = field(default_factory=dict)
    # Vertices that this file itself removes.
    removed: set[str] = field(default_factory=set)
    # The lines of the links that this file itself defines. It may define the links of a base again.
    own: dict[tuple[str, str, LinkKind], int] = field(default_factory=dict)

    @staticmethod
    def of(topology: Topology) -> Draft:
        """Returns a draft with the contents of a topology."""
        names = tuple(v.name for v in topology.vertices)
        servers = dict(topology.servers)
        is_default = list(servers) == [DEFAULT_SERVER] and set(servers[DEFAULT_SERVER]) == set(names)
        return Draft(
            {v.name: v for v in topology.vertices},
            {(link.src, link.dst, link.kind): link for link in topology.links},
            None if is_default else servers,
            gpu_model=topology.gpu_model,
            models=dict(topology.models),
            assumes=dict.fromkeys(topology.assumes),
        )

    def add_server(self, server: str, part: Draft) -> str | None:
        """Adds a copy of `part` as one server. Returns the problem, or None."""

        def rename(name: str) -> str:
            return f"{server}.{name}"

        for vertex in part.vertices.values():
            problem = "is given twice" if rename(vertex.name) in self.vertices else name_problem(rename(vertex.name))
            if problem:
                return f"the name `{rename(vertex.name)}` {problem}"
            if len(self.vertices) >= MAX_VERTICES:
                return f"more than {MAX_VERTICES} vertices"
            # Servers of one kind have their GPUs at the same bus ids, but each GPU has another UUID.
            device = Device(vertex.device.pci) if vertex.device else None
            self.vertices[rename(vertex.name)] = replace(vertex, name=rename(vertex.name), device=device)
        for link in part.links.values():
            copy = replace(link, src=rename(link.src), dst=rename(link.dst))
            self.links[copy.src, copy.dst, copy.kind] = copy
        self.servers = {} if self.servers is None else self.servers
        self.servers[server] = tuple(map(rename, part.vertices))
        if part.gpu_model is not None:
            self.models[server] = part.gpu_model
        self.assumes |= part.assumes
        return None

    def add_vertex(self, vertex: Vertex) -> None:
        """Adds a vertex of the file itself. If there are servers, ``SERVER.name`` becomes a vertex of that server."""
        self.vertices[vertex.name] = vertex
        server = vertex.name.partition(".")[0]
        while self.servers and server not in self.servers and len(server) < len(vertex.name):
            server = vertex.name[: (vertex.name + ".").index(".", len(server) + 1)]
        if self.servers and server in self.servers and vertex.name != server:
            self.servers[server] = (*self.servers[server], vertex.name)

    def begin_links(self) -> None:
        """Begins the links of the file itself: forgets the lines of links added so far."""
        self.own = {}

    def add_link(self, src: str, dst: str, kind: LinkKind, speed: Speed, line: int) -> int | None:
        """Adds a link, or replaces one of the base. Returns the line where this file defines it already, or None."""
        key = (src, dst, kind)
        if key in self.own:
            return self.own[key]
        self.own[key] = line
        self.links[key] = Link(src, dst, kind, speed.gbps, speed.latency_us, speed.lanes)
        return None

    def remove_vertices(self, names: Collection[str]) -> None:
        """Removes vertices and their links. Takes all vertices at once, because each call reads every link."""
        for name in names:
            del self.vertices[name]
        self.removed.update(names)
        self.links = {key: link for key, link in self.links.items() if key[0] not in names and key[1] not in names}
        if self.servers is not None:
            self.servers = {s: tuple(m for m in members if m not in names) for s, members in self.servers.items()}

    def remove_links(self, a: str, b: str, kind: LinkKind | None) -> bool:
        """Removes the links between a and b in both directions. Returns True if there were any."""
        kinds = list(LinkKind) if kind is None else [kind]
        links = [self.links.pop(key, None) for k in kinds for key in ((a, b, k), (b, a, k))]
        return any(link is not None for link in links)

    def finish(self, name: str, where: str) -> Topology:
        """Returns the topology: GPUs first, then switches, CPUs and NICs, each kind in the order of the file.

        Raises:
            TopologyError: there is no GPU, or a GPU is in no server.
        """
        order = list(VertexKind)
        vertices = tuple(sorted(self.vertices.values(), key=lambda v: order.index(v.kind)))
        if not vertices or vertices[0].kind is not VertexKind.GPU:
            raise TopologyError("the topology has no GPU", where=where, hint="add `gpus: 8` or a list of names")
        if self.servers is None:
            servers = {DEFAULT_SERVER: tuple(v.name for v in vertices)}
        else:
            members = {name for names in self.servers.values() for name in names}
            outside = [v.name for v in vertices if v.kind is VertexKind.GPU and v.name not in members]
            if outside:
                raise TopologyError(f"{outside[0]} is in no server", where=where, hint="list it under `servers`")
            servers = {server: members for server, members in self.servers.items() if members}
        return Topology(
            name,
            vertices,
            tuple(self.links.values()),
            servers,
            gpu_model=self.gpu_model,
            models=self.models,
            assumes=tuple(kind for kind in LinkKind if kind in self.assumes),
        )
