"""Several probed servers as one cluster: kinds of servers, what single servers lack, and the network between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from collc.topology.model import Link, LinkKind, Topology, Vertex


@dataclass(frozen=True)
class Server:
    """One server as it was probed.

    `real` maps names of `machine` to what the server itself calls them, where these differ: a server that lost a GPU
    numbers the others anew. `source` is the file that it comes from, for messages.
    """

    name: str
    machine: Topology
    source: str
    real: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """What a server lacks, or has beyond its kind's template; `words` say it, a line each without the server's name."""

    words: tuple[str, ...]
    gone: tuple[str, ...] = ()
    gone_links: tuple[tuple[str, str, LinkKind], ...] = ()
    vertices: tuple[Vertex, ...] = ()
    links: tuple[Link, ...] = ()


@dataclass(frozen=True)
class Kind:
    """Servers that one template describes, apart from the differences of the odd ones."""

    name: str
    template: Topology
    servers: tuple[Server, ...]
    odd: Mapping[str, Difference]


@dataclass(frozen=True)
class Cable:
    """A network link in both directions, in GB/s each.

    `a` is ``SERVER.NIC`` and `server` its server, or, where `server` is empty, a switch; `b` is a switch.
    """

    a: str
    b: str
    gbps: Fraction
    server: str = ""

    @property
    def nic(self) -> str:
        """The NIC of `a` without its server."""
        return self.a[len(self.server) + 1 :]


@dataclass(frozen=True)
class Network:
    """Switches and cables between servers. `notes` say where they come from and what was assumed."""

    switches: tuple[str, ...] = ()
    cables: tuple[Cable, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """Servers folded into kinds, and the network that joins them."""

    name: str
    kinds: tuple[Kind, ...]
    network: Network
    notes: tuple[str, ...] = ()
