"""The network cards of a plan over several servers, as a library tells them to its runtime.

The runtime joins machines over the interfaces of these cards, where it finds them. No plan depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from collc.topology.model import LinkKind, PlanGraph, Topology, Vertex, VertexKind

_LONGEST_NAME = 16


@dataclass(frozen=True)
class Card:
    """A card by what the system of its server knows it by, "" where that is not known.

    Args:
        name: of its network interface or RDMA device.
        server: the number of its server among those of the ranks, in their order.
        network: cards of one number are joined by links and switches of the network; counted from 1.
    """

    vertex: str
    name: str
    pci: str
    server: int
    network: int

    @property
    def bus(self) -> int:
        """As `Card::bus` of templates/include/collc/tables.h."""
        if not self.pci:
            return 0
        place, _, function = self.pci.partition(".")
        domain, bus, device = (int(part, 16) for part in place.split(":"))
        return domain << 32 | bus << 16 | device << 8 | (int(function) + 1)

    @property
    def packed_name(self) -> tuple[int, int]:
        """As `Card::name` and `Card::rest`."""
        text = self.name.encode().ljust(_LONGEST_NAME, b"\0")
        return int.from_bytes(text[:8], "little"), int.from_bytes(text[8:], "little")


def cards_of(topology: Topology, graph: PlanGraph) -> list[Card]:
    """The cards of a plan's graph that are known by anything; none where the plan stays on one server.

    `collc.checker.cards` finds the same from what a library says of its machine.
    """
    servers = {name: number for number, name in enumerate(dict.fromkeys(graph.rank_servers))}
    if len(servers) < 2 or all(link.kind is not LinkKind.NET for link in graph.links):
        return []
    vertices = {v.name: v for v in topology.vertices}
    networks = _networks(topology, vertices)
    found: dict[str, Card] = {}
    for v, own in zip(graph.vertices, graph.servers, strict=True):
        # The two ways through a card that must not join them are two vertices of the graph, NAME+in and NAME+out.
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
    """The number of the network of everything but GPUs that links of the network end at."""
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
