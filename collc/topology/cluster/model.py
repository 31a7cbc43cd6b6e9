"""The model of a cluster of probed servers: kinds of servers, differences of single servers, and the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from collc.topology.model import Link, LinkKind, Topology, Vertex


@dataclass(frozen=True)
class Server:
    """One server as a probe describes it.

    Attributes:
        machine: the topology of the server.
        source: the file or the rank that it comes from, for messages.
        real: names in `machine` -> the server's own names, where the two differ. A server that lost a GPU numbers the
            other GPUs differently.
    """

    name: str
    machine: Topology
    source: str
    real: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """The difference between a server and the template of its kind.

    Attributes:
        words: one phrase for each difference, without the server's name.
        gone: names of the template's vertices that the server lacks.
        gone_links: (source, destination, kind) of the template's links that the server lacks.
        vertices, links: the vertices and links to add to the template.
    """

    words: tuple[str, ...]
    gone: tuple[str, ...] = ()
    gone_links: tuple[tuple[str, str, LinkKind], ...] = ()
    vertices: tuple[Vertex, ...] = ()
    links: tuple[Link, ...] = ()


@dataclass(frozen=True)
class Kind:
    """Servers that one template describes; `odd` has the differences of servers that deviate from it, by name."""

    name: str
    template: Topology
    servers: tuple[Server, ...]
    odd: Mapping[str, Difference]


@dataclass(frozen=True)
class Cable:
    """A network link in both directions, with `gbps` GB/s in each.

    Attributes:
        a: ``SERVER.NIC``, or a switch if `server` is empty.
        b: a switch.
        server: the server of `a`, or empty.
    """

    a: str
    b: str
    gbps: Fraction
    server: str = ""

    @property
    def nic(self) -> str:
        """The name of the NIC `a` without its server."""
        return self.a[len(self.server) + 1 :]


@dataclass(frozen=True)
class Network:
    """Switches and cables between servers.

    Attributes:
        notes: the source and the assumptions.
        assumed: True if cables or their speeds are assumed.
    """

    switches: tuple[str, ...] = ()
    cables: tuple[Cable, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: bool = False


@dataclass(frozen=True)
class Domain:
    """An NVLink domain over several servers.

    Attributes:
        switch: the vertex of all its NVSwitches.
        links: (server, link from its GPU into the switch); the link's ends have the server's own names.
    """

    switch: Vertex
    links: tuple[tuple[str, Link], ...]


@dataclass(frozen=True)
class Cluster:
    """The kinds of servers, and the network and the NVLink domains that join the servers."""

    name: str
    kinds: tuple[Kind, ...]
    network: Network
    notes: tuple[str, ...] = ()
    domains: tuple[Domain, ...] = ()
