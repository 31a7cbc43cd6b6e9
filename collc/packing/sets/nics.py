"""Lists the NICs of a plan over several servers, which a library passes to its runtime.

The runtime connects machines over the interfaces of these NICs if it finds them. No plan depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from collc.topology.model import LinkKind, PlanGraph, Topology, Vertex, VertexKind

_LONGEST_NAME = 16


@dataclass(frozen=True)
class Card:
    """A NIC, by the names that the operating system of its server has for it.

    Attributes:
        vertex: its name in the topology.
        name: its network interface or RDMA device, or empty.
        pci: its PCI address, or empty.
        server: the number of its server. Servers are numbered in the order of their first ranks.
        network: a number from 1 on. Links and switches of the network join NICs of equal number.
    """

    vertex: str
    name: str
    pci: str
    server: int
    network: int

    @property
    def bus(self) -> int:
        """The PCI address as `Card::bus` of templates/include/collc/tables.h; 0 if unknown."""
        if not self.pci:
            return 0
        place, _, function = self.pci.partition(".")
        domain, bus, device = (int(part, 16) for part in place.split(":"))
        return domain << 32 | bus << 16 | device << 8 | (int(function) + 1)

    @property
    def packed_name(self) -> tuple[int, int]:
        """The name as `Card::name` and `Card::rest`: two words of 8 bytes, padded by zeros."""
        text = self.name.encode().ljust(_LONGEST_NAME, b"\0")
        return int.from_bytes(text[:8], "little"), int.from_bytes(text[8:], "little")


def cards_of(topology: Topology, graph: PlanGraph) -> list[Card]:
    """Returns the NICs of a plan's graph that have a name or a PCI address; none if the plan stays on one server.

    `collc.checker.cards` derives the same list from the machine in a library.
    """
    servers = {name: number for number, name in enumerate(dict.fromkeys(graph.rank_servers))}
    if len(servers) < 2 or all(link.kind is not LinkKind.NET for link in graph.links):
        return []
    vertices = {v.name: v for v in topology.vertices}
    networks = _networks(topology, vertices)
    found: dict[str, Card] = {}
    for v, own in zip(graph.vertices, graph.servers, strict=True):
        # A NIC that must not forward is split into two vertices of the graph, NAME+in and NAME+out.
        name = v.name if v.name in vertices else v.name.rpartition("+")[0]
        port = vertices[name].port if name in vertices else None
        if v.kind is not VertexKind.NIC or own not in servers or port is None or not port.up or name in found:
            continue
        known = port.interface or ""
        known = known if len(known.encode()) <= _LONGEST_NAME else ""
        if name in networks and (known or port.pci):
            found[name] = Card(name, known, port.pci or "", servers[own], networks[name])
    return list(found.values())


def _networks(topology: Topology, vertices: Mapping[str, Vertex]) -> dict[str, int]:
    """Returns the number of the network of each end of a link of the network, except for links of GPUs."""
    links = [
        (link.src, link.dst)
        for link in topology.links
        if link.kind is LinkKind.NET and VertexKind.GPU not in (vertices[link.src].kind, vertices[link.dst].kind)
    ]
    leads: dict[str, str] = {}
    for src, dst in links:
        leads[_end(leads, src)] = _end(leads, dst)
    return _numbered(leads, dict.fromkeys(end for link in links for end in link))


def _end(leads: dict[str, str], name: str) -> str:
    leads.setdefault(name, name)
    while leads[name] != name:
        leads[name] = name = leads[leads[name]]
    return name


def _numbered(leads: dict[str, str], names: Iterable[str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    return {name: numbers.setdefault(_end(leads, name), len(numbers) + 1) for name in names}
