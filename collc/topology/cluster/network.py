"""The network between servers: from a file of rails, from fabric dumps, or assumed, with a note.

Without a description, collc assumes that NIC j of every server is on switch `rail<j>`. A plan for such rails also works
on every network that joins equal NICs at their full speed: one switch, a rail-optimized network, a fat tree without
oversubscription. A plan for one common switch would use paths that a network of separate rails does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
        is_assumed: True if the speed is the speed of the PCIe link.
    """

    server: str
    name: str
    local_name: str
    gbps: Fraction
    guid: str | None = None
    interface: str | None = None
    is_assumed: bool = False

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
                is_assumed = port is None or port.gbps is None
                if is_assumed:
                    assumed.add(vertex.name)
                local_name = server.real.get(vertex.name, vertex.name)
                ids = (port.guid, port.interface) if port else (None, None)
                nics.append(Nic(server.name, vertex.name, local_name, gbps, *ids, is_assumed))
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
    NICs are on one switch. The note names another reading if it gives servers another bandwidth.
    """
    servers: dict[str, list[Nic]] = {}
    for nic in nics:
        servers.setdefault(nic.server, []).append(nic)
    if len(servers) < 2:
        return Network()
    by_name = _rails(servers, {nic.vertex: nic.name for nic in nics})
    by_own_name = _rails(servers, {nic.vertex: nic.local_name for nic in nics})
    in_order: dict[str, str] = {}
    for members in servers.values():
        in_order |= {nic.vertex: str(i) for i, nic in enumerate(sorted(members, key=lambda nic: natural(nic.name)))}
    by_order = _rails(servers, in_order)
    sizes = {len(members) for members in servers.values()}
    if all(2 * size >= len(by_name.switches) for size in sizes) and max(sizes) * 2 > len(by_name.switches):
        first = min((nic.name for nic in nics), key=natural)
        how = f"NICs of one name on one switch ({first} on rail0{' ...' if len(by_name.switches) > 1 else ''})"
        others = ((by_own_name, "by the servers' own names"), (by_order, "NIC j of each server on rail j"))
        return _assumed(by_name, how, [other for other in others if len(sizes) == 1 or other[0] is by_own_name])
    if len(sizes) == 1:
        how = "NIC j of each server on rail j (their names differ)"
        return _assumed(by_order, how, [(by_own_name, "NICs of one name on one switch")])
    what = "assumed one switch that limits nobody, since servers have unequal numbers of NICs under different names"
    to_switch = tuple(Cable(nic.vertex, "net0", nic.gbps, nic.server) for nic in nics)
    return Network(("net0",), to_switch, (f"network: {what}; --rails or --fabric would tell",), assumed=True)


def _rails(servers: Mapping[str, Sequence[Nic]], key_of: Mapping[str, str]) -> Network:
    """Returns the network whose switches each join the NICs of one key, in the natural order of keys."""
    keys = sorted(set(key_of.values()), key=natural)
    rail = {key: f"rail{i}" for i, key in enumerate(keys)}
    nics = [nic for members in servers.values() for nic in members]
    cables = tuple(Cable(nic.vertex, rail[key_of[nic.vertex]], nic.gbps, nic.server) for nic in nics)
    return Network(tuple(rail.values()), cables, assumed=True)


def _assumed(network: Network, how: str, others: Sequence[tuple[Network, str]]) -> Network:
    """Returns the network with a note; it names another reading that gives a server over 10% more or less bandwidth."""
    count, gbps = len(network.switches), _between(network)
    what = f"assumed {count} rail{'s' * (count > 1)}, {how}"
    for other, words in others:
        if abs(_between(other) - gbps) * 10 > gbps:
            what += f", {_gbps(gbps)} GB/s between servers; {words} would be {len(other.switches)} rails, "
            what += f"{_gbps(_between(other))} GB/s"
            break
    return replace(network, notes=(f"network: {what}; --rails or --fabric would tell",))


def _between(network: Network) -> Fraction:
    """Returns the least GB/s of a server's NICs on rails that it shares with another server."""
    on_rail: dict[str, set[str]] = {}
    for cable in network.cables:
        on_rail.setdefault(cable.b, set()).add(cable.server)
    gbps: dict[str, Fraction] = {}
    for cable in network.cables:
        shared = cable.gbps if len(on_rail[cable.b]) > 1 else Fraction(0)
        gbps[cable.server] = gbps.get(cable.server, Fraction(0)) + shared
    return min(gbps.values())


def _gbps(value: Fraction) -> str:
    return f"{float(value):g}"


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
    return Network((*network.switches, spine), tuple(cables), (*network.notes, note), assumed=True)


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
            return replace(network, switches=live, cables=tuple(cables))
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
