"""A topology while it is being put together from a file, its base and its templates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from collc.errors import TopologyError
from collc.topology.fields import Speed
from collc.topology.model import Device, Link, LinkKind, Topology, Vertex, VertexKind
from collc.topology.names import name_problem

MAX_VERTICES = 65536
# One direction of one kind between two vertices is a link; 4,096 GPUs in racks of 72 have 150,000.
MAX_LINKS = 262_144
DEFAULT_SERVER = "server0"


@dataclass
class Draft:
    """Vertices and links by name in the order of the file. `servers` is None while it is the default: one for all."""

    vertices: dict[str, Vertex] = field(default_factory=dict)
    links: dict[tuple[str, str, LinkKind], Link] = field(default_factory=dict)
    servers: dict[str, tuple[str, ...]] | None = None
    speeds: dict[LinkKind, Speed] = field(default_factory=dict)
    gpu_model: str | None = None
    models: dict[str, str] = field(default_factory=dict)
    # What this file itself has removed.
    removed: set[str] = field(default_factory=set)
    # Lines of the links that this file itself has given; those of a base may be given again.
    own: dict[tuple[str, str, LinkKind], int] = field(default_factory=dict)

    @staticmethod
    def of(topology: Topology) -> Draft:
        """A draft that begins with a finished topology."""
        everything = tuple(v.name for v in topology.vertices)
        servers = dict(topology.servers)
        implied = list(servers) == [DEFAULT_SERVER] and set(servers[DEFAULT_SERVER]) == set(everything)
        return Draft(
            {v.name: v for v in topology.vertices},
            {(link.src, link.dst, link.kind): link for link in topology.links},
            None if implied else servers,
            gpu_model=topology.gpu_model,
            models=dict(topology.models),
        )

    def add_server(self, server: str, part: Draft) -> str | None:
        """Adds a copy of `part` as one server. Returns what is wrong, or None."""

        def new(name: str) -> str:
            return f"{server}.{name}"

        for vertex in part.vertices.values():
            problem = "is given twice" if new(vertex.name) in self.vertices else name_problem(new(vertex.name))
            if problem:
                return f"the name `{new(vertex.name)}` {problem}"
            if len(self.vertices) >= MAX_VERTICES:
                return f"more than {MAX_VERTICES} vertices"
            # Servers of one kind have their GPUs in the same places, but not the same GPUs.
            device = Device(vertex.device.pci) if vertex.device else None
            self.vertices[new(vertex.name)] = replace(vertex, name=new(vertex.name), device=device)
        for link in part.links.values():
            copy = replace(link, src=new(link.src), dst=new(link.dst))
            self.links[copy.src, copy.dst, copy.kind] = copy
        self.servers = {} if self.servers is None else self.servers
        self.servers[server] = tuple(map(new, part.vertices))
        if part.gpu_model is not None:
            self.models[server] = part.gpu_model
        return None

    def add_vertex(self, vertex: Vertex) -> None:
        """Adds a vertex of the file itself; ``SERVER.name`` belongs to that server where there are templates."""
        self.vertices[vertex.name] = vertex
        server = vertex.name.partition(".")[0]
        while self.servers and server not in self.servers and len(server) < len(vertex.name):
            server = vertex.name[: (vertex.name + ".").index(".", len(server) + 1)]
        if self.servers and server in self.servers and vertex.name != server:
            self.servers[server] = (*self.servers[server], vertex.name)

    def begin_links(self) -> None:
        """From here on links are the file's own."""
        self.own = {}

    def add_link(self, src: str, dst: str, kind: LinkKind, speed: Speed, line: int) -> int | None:
        """Adds or, over a base, replaces a link. Returns the earlier line if this file has given it already."""
        key = (src, dst, kind)
        if key in self.own:
            return self.own[key]
        self.own[key] = line
        self.links[key] = Link(src, dst, kind, speed.gbps, speed.latency_us, speed.lanes)
        return None

    def remove_vertices(self, names: Collection[str]) -> None:
        """Removes vertices and the links that end there, all at once: each of them alone would look at every link."""
        for name in names:
            del self.vertices[name]
        self.removed.update(names)
        self.links = {key: link for key, link in self.links.items() if key[0] not in names and key[1] not in names}
        if self.servers is not None:
            self.servers = {s: tuple(m for m in members if m not in names) for s, members in self.servers.items()}

    def remove_links(self, a: str, b: str, kind: LinkKind | None) -> bool:
        """Removes the links between a and b, both directions. Returns whether there were any."""
        kinds = list(LinkKind) if kind is None else [kind]
        gone = [self.links.pop(key, None) for k in kinds for key in ((a, b, k), (b, a, k))]
        return any(link is not None for link in gone)

    def finish(self, name: str, where: str) -> Topology:
        """The finished topology: GPUs first, then switches, CPUs and NICs, each in the order of the file."""
        order = list(VertexKind)
        vertices = tuple(sorted(self.vertices.values(), key=lambda v: order.index(v.kind)))
        if not vertices or vertices[0].kind is not VertexKind.GPU:
            raise TopologyError("the topology has no GPU", where=where, hint="add `gpus: 8` or a list of names")
        if self.servers is None:
            servers = {DEFAULT_SERVER: tuple(v.name for v in vertices)}
        else:
            housed = {member for members in self.servers.values() for member in members}
            homeless = [v.name for v in vertices if v.kind is VertexKind.GPU and v.name not in housed]
            if homeless:
                raise TopologyError(f"{homeless[0]} is in no server", where=where, hint="list it under `servers`")
            servers = {server: members for server, members in self.servers.items() if members}
        return Topology(
            name, vertices, tuple(self.links.values()), servers, gpu_model=self.gpu_model, models=self.models
        )
