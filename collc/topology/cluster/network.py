"""The network between servers: from a file of rails, from fabric dumps, or assumed, with a note.

Without a description, collc assumes that NIC j of every server is on switch `rail<j>`. A plan for such rails also works
on every network that joins equal NICs at their full speed: one switch, a rail-optimized network, a fat tree without
oversubscription. A plan for one common switch would use paths that a network of separate rails does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.errors import first_few
from collc.topology.cluster.model import Cable, Kind, Network
from collc.topology.model import LinkKind, VertexKind


@dataclass(frozen=True)
class Nic:
    """A NIC that can carry traffic between servers.

    Attributes:
        name: the name in the cluster file, without the server.
        local_name: the name that the server itself gives it.
        gbps: the speed in GB/s.
    """

    server: str
    name: str
    local_name: str
    gbps: Fraction
    guid: str | None = None
    interface: str | None = None

    @property
    def vertex(self) -> str:
        """The name of its vertex in the file."""
        return f"{self.server}.{self.name}"


def usable_nics(kinds: Sequence[Kind]) -> tuple[list[Nic], list[str]]:
    """Returns the NICs that are up and have a speed, and notes about speeds that are assumed or unknown.

    A NIC whose port has no speed gets the speed of its slowest PCIe or C2C link.
    """
    nics, assumed, without_speed = [], set(), set()
    for kind in kinds:
        for server in kind.servers:
            pcie: dict[str, Fraction] = {}
            for link in server.machine.links:
                if link.kind in (LinkKind.PCIE, LinkKind.C2C):
                    pcie[link.src] = min(link.gbps, pcie.get(link.src, link.gbps))
            for vertex in server.machine.vertices:
                port = vertex.port
                if vertex.kind is not VertexKind.NIC or (port is not None and not port.up):
                    continue
                gbps = (port and port.gbps) or pcie.get(vertex.name)
                if gbps is None:
                    without_speed.add(vertex.name)
                    continue
                if port is None or port.gbps is None:
                    assumed.add(vertex.name)
                local_name = server.real.get(vertex.name, vertex.name)
                ids = (port.guid, port.interface) if port else (None, None)
                nics.append(Nic(server.name, vertex.name, local_name, gbps, *ids))
    notes = []
    if assumed:
        notes.append(f"speed of {_shorten(assumed)}: not in the files, taken as that of its PCIe link")
    if without_speed:
        notes.append(f"speed of {_shorten(without_speed)}: in no file, so no network link")
    return nics, notes


def fast_nics(nics: Iterable[Nic]) -> tuple[list[Nic], list[str]]:
    """Returns the NICs with at least half the speed of their server's fastest NIC, and a note about the others.

    The others are assumed to serve storage and logins.
    """
    nics = list(nics)
    best: dict[str, Fraction] = {}
    for nic in nics:
        best[nic.server] = max(nic.gbps, best.get(nic.server, nic.gbps))
    slow = {nic.name: nic.gbps for nic in nics if 2 * nic.gbps < best[nic.server]}
    notes = [
        f"NIC {_shorten(slow)}: slower than half of the fastest NIC of its server, left out of the network"
        for _ in range(bool(slow))
    ]
    return [nic for nic in nics if 2 * nic.gbps >= best[nic.server]], notes


def assumed_network(nics: Sequence[Nic]) -> Network:
    """Returns the network to assume without a description; an empty one for fewer than two servers.

    NICs of one name are on one rail, if every server has at least half of all names and some server has more. Else NIC
    j of each server is on rail j, in the natural order of names, if all servers have the same number of NICs. Else all
    NICs are on one switch.
    """
    servers: dict[str, list[Nic]] = {}
    for nic in nics:
        servers.setdefault(nic.server, []).append(nic)
    if len(servers) < 2:
        return Network()
    names = sorted({nic.name for nic in nics}, key=natural)
    sets = [{nic.name for nic in members} for members in servers.values()]
    if any(len(subset) * 2 > len(names) for subset in sets) and all(len(subset) * 2 >= len(names) for subset in sets):
        rail = {name: f"rail{i}" for i, name in enumerate(names)}
        cables = [Cable(nic.vertex, rail[nic.name], nic.gbps, nic.server) for nic in nics]
        how = f"NICs of one name on one switch ({names[0]} on rail0{' ...' if len(names) > 1 else ''})"
        what = f"assumed {len(names)} rail{'s' * (len(names) > 1)}, {how}"
        return Network(tuple(rail.values()), tuple(cables), (f"network: {what}; --rails or --fabric would tell",))
    if len({len(subset) for subset in sets}) == 1:
        cables, count = [], len(sets[0])
        for members in servers.values():
            members_in_order = sorted(members, key=lambda nic: natural(nic.name))
            cables += [Cable(nic.vertex, f"rail{i}", nic.gbps, nic.server) for i, nic in enumerate(members_in_order)]
        what = f"assumed {count} rail{'s' * (count > 1)}, NIC j of each server on rail j (their names differ)"
        rails = tuple(f"rail{i}" for i in range(count))
        return Network(rails, tuple(cables), (f"network: {what}; --rails or --fabric would tell",))
    what = "assumed one switch that limits nobody, since servers have unequal numbers of NICs under different names"
    to_switch = tuple(Cable(nic.vertex, "net0", nic.gbps, nic.server) for nic in nics)
    return Network(("net0",), to_switch, (f"network: {what}; --rails or --fabric would tell",))


def with_spine(network: Network) -> Network:
    """Returns the network with a switch `spine` above it, if groups of servers have no switch in common.

    The link from each switch to the spine has the speed of all NICs on that switch. Dumps of LLDP show only the
    switches next to servers, and a file of rails may omit the switches above them.
    """
    pieces = _pieces(network)
    if len(pieces) < 2:
        return network
    below: dict[str, Fraction] = {}
    for cable in network.cables:
        if cable.server:
            below[cable.b] = below.get(cable.b, Fraction(0)) + cable.gbps
    spine = free_name("spine", set(network.switches))
    cables = [*network.cables, *(Cable(leaf, spine, gbps) for leaf, gbps in below.items())]
    note = (
        f"network: {len(pieces)} groups of servers have no switch in common; assumed one switch above, `{spine}`, with "
        "the speed of all NICs below each switch"
    )
    return Network((*network.switches, spine), tuple(cables), (*network.notes, note))


def _pieces(network: Network) -> list[set[str]]:
    """Returns the groups of servers that switches and servers join."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.get(name, name) != name:
            parent[name] = parent.get(parent[name], parent[name])
            name = parent[name]
        return name

    def group(cable: Cable) -> str:
        return f"server {cable.server}" if cable.server else f"switch {cable.a}"

    for cable in network.cables:
        a, b = find(group(cable)), find(f"switch {cable.b}")
        parent[a] = b
    groups: dict[str, set[str]] = {}
    for cable in network.cables:
        if cable.server:
            groups.setdefault(find(group(cable)), set()).add(cable.server)
    return list(groups.values())


def prune_switches(network: Network) -> Network:
    """Returns the network without switches that lead nowhere, and without the cables that end there.

    Dumps show the whole fabric, including parts that serve storage or other machines.
    """
    cables = list(network.cables)
    switches = set(network.switches)
    while True:
        degree: dict[str, int] = {}
        for cable in cables:
            for end in (cable.a, cable.b):
                degree[end] = degree.get(end, 0) + 1
        dead_ends = {name for name in switches if degree.get(name, 0) < 2}
        if not dead_ends:
            live = tuple(name for name in network.switches if name in switches)
            return Network(live, tuple(cables), network.notes)
        switches -= dead_ends
        cables = [cable for cable in cables if cable.a not in dead_ends and cable.b not in dead_ends]


def natural(name: str) -> list[tuple[int, str]]:
    """Returns a sort key that puts mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]{1,9})", name)]


def free_name(name: str, taken: set[str]) -> str:
    """Returns `name`, with a number appended if it is in `taken`."""
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}-{number}", number + 1
    return candidate


def _shorten(names: Iterable[str]) -> str:
    return first_few(sorted(names, key=natural), 8)
