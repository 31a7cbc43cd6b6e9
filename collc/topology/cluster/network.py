"""The network between servers: from a file of rails, from fabric dumps, else assumed and said so.

Without a description NIC j of every server is taken to hang on switch `rail<j>`. What a plan does on rails it can do on
every network that joins equal NICs at their full speed: one switch, a rail-optimised one, a fat tree without
oversubscription. Taking one switch for all would use ways that a network of rails alone does not have.
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
    """A NIC that can carry traffic between servers: its name in the file, its own name, its speed in GB/s."""

    server: str
    name: str
    own: str
    gbps: Fraction
    guid: str | None = None
    interface: str | None = None

    @property
    def vertex(self) -> str:
        """Its vertex in the file."""
        return f"{self.server}.{self.name}"


def usable_nics(kinds: Sequence[Kind]) -> tuple[list[Nic], list[str]]:
    """NICs that are up, with their speeds; and what was assumed of the speeds."""
    found, guessed, unknown = [], set(), set()
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
                    unknown.add(vertex.name)
                    continue
                if port is None or port.gbps is None:
                    guessed.add(vertex.name)
                own = server.real.get(vertex.name, vertex.name)
                about = (port.guid, port.interface) if port else (None, None)
                found.append(Nic(server.name, vertex.name, own, gbps, *about))
    notes = []
    if guessed:
        notes.append(f"speed of {_few(guessed)}: not in the files, taken as that of its PCIe link")
    if unknown:
        notes.append(f"speed of {_few(unknown)}: in no file, so no network link")
    return found, notes


def fast_nics(nics: Iterable[Nic]) -> tuple[list[Nic], list[str]]:
    """The NICs of at least half the speed of their server's fastest: the others are for storage and logging in."""
    nics = list(nics)
    best: dict[str, Fraction] = {}
    for nic in nics:
        best[nic.server] = max(nic.gbps, best.get(nic.server, nic.gbps))
    slow = {nic.name: nic.gbps for nic in nics if 2 * nic.gbps < best[nic.server]}
    notes = [
        f"NIC {_few(slow)}: slower than half of the fastest NIC of its server, left out of the network"
        for _ in range(bool(slow))
    ]
    return [nic for nic in nics if 2 * nic.gbps >= best[nic.server]], notes


def assumed_network(nics: Sequence[Nic]) -> Network:
    """Rails by the names of the NICs, or by their order in servers that name them otherwise; one switch where servers
    have unequal numbers of NICs under different names."""
    servers: dict[str, list[Nic]] = {}
    for nic in nics:
        servers.setdefault(nic.server, []).append(nic)
    if len(servers) < 2:
        return Network()
    names = sorted({nic.name for nic in nics}, key=natural)
    sets = [{nic.name for nic in own} for own in servers.values()]
    if any(len(one) * 2 > len(names) for one in sets) and all(len(one) * 2 >= len(names) for one in sets):
        rail = {name: f"rail{i}" for i, name in enumerate(names)}
        cables = [Cable(nic.vertex, rail[nic.name], nic.gbps, nic.server) for nic in nics]
        how = f"NICs of one name on one switch ({names[0]} on rail0{' ...' if len(names) > 1 else ''})"
        what = f"assumed {len(names)} rail{'s' * (len(names) > 1)}, {how}"
        return Network(tuple(rail.values()), tuple(cables), (f"network: {what}; --rails or --fabric would tell",))
    if len({len(one) for one in sets}) == 1:
        cables, count = [], len(sets[0])
        for own in servers.values():
            ordered = sorted(own, key=lambda nic: natural(nic.name))
            cables += [Cable(nic.vertex, f"rail{i}", nic.gbps, nic.server) for i, nic in enumerate(ordered)]
        what = f"assumed {count} rail{'s' * (count > 1)}, NIC j of each server on rail j (their names differ)"
        rails = tuple(f"rail{i}" for i in range(count))
        return Network(rails, tuple(cables), (f"network: {what}; --rails or --fabric would tell",))
    what = "assumed one switch that limits nobody, since servers have unequal numbers of NICs under different names"
    every = tuple(Cable(nic.vertex, "net0", nic.gbps, nic.server) for nic in nics)
    return Network(("net0",), every, (f"network: {what}; --rails or --fabric would tell",))


def with_spine(network: Network) -> Network:
    """Joins switches that leave servers apart by one more, `spine`, at the speed of all that hangs on each.

    Dumps of LLDP show the switches next to servers alone, and a file of rails may leave out what joins them.
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
    """Servers by the switches that join them; a server joins all its NICs."""
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
    found: dict[str, set[str]] = {}
    for cable in network.cables:
        if cable.server:
            found.setdefault(find(group(cable)), set()).add(cable.server)
    return list(found.values())


def pruned(network: Network) -> Network:
    """Without switches that lead nowhere: dumps show the whole fabric, also what serves storage and others."""
    cables = list(network.cables)
    switches = set(network.switches)
    while True:
        degree: dict[str, int] = {}
        for cable in cables:
            for end in (cable.a, cable.b):
                degree[end] = degree.get(end, 0) + 1
        dead = {name for name in switches if degree.get(name, 0) < 2}
        if not dead:
            kept = tuple(name for name in network.switches if name in switches)
            return Network(kept, tuple(cables), network.notes)
        switches -= dead
        cables = [cable for cable in cables if cable.a not in dead and cable.b not in dead]


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]{1,9})", name)]


def free_name(name: str, taken: set[str]) -> str:
    """`name`, or with a number where it is taken."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    return found


def _few(names: Iterable[str]) -> str:
    return first_few(sorted(names, key=natural), 8)
