"""Builds the network between probed servers from fabric dumps.

InfiniBand dumps identify NICs by GUID or description, LLDP dumps by interface.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from collc.errors import TopologyError
from collc.topology.cluster.infiniband import Fabric, looks_like_infiniband, read_infiniband
from collc.topology.cluster.linkinfo import looks_like_linkinfo, read_linkinfo
from collc.topology.cluster.lldp import Neighbor, looks_like_lldp, read_lldp
from collc.topology.cluster.model import Cable, Network
from collc.topology.cluster.network import Nic, free_name, natural, prune_switches, with_spine
from collc.topology.names import MAX_NAME, name_problem
from collc.topology.probe.lines import MAX_LINE, Text

KNOWN = (
    "ibnetdiscover, iblinkinfo, ibdiagnet's .lst, .db_csv or .ibnetdiscover, lldpctl -f json, json0 or keyvalue, "
    "Slurm's topology.conf or topology.yaml"
)
MAX_BYTES = 256 << 20


def fabric_network(dumps: Sequence[tuple[str, str]], nics: Sequence[Nic]) -> Network:
    """Returns the network that dumps show.

    Args:
        dumps: (name of the file, text). One dump of InfiniBand shows the whole fabric; LLDP needs one file per server,
            called ``SERVER.*``.
        nics: the NICs of the servers.

    Raises:
        TopologyError: a file is no dump of a known format or is damaged, or no dump shows a NIC of the servers.
    """
    cables: list[Cable] = []
    switches: dict[str, None] = {}
    notes: list[str] = []
    neighbors: dict[str, list[Neighbor]] = {}
    for where, raw in dumps:
        content = _text(raw, where)
        if looks_like_infiniband(content) or looks_like_linkinfo(content):
            read = read_infiniband if looks_like_infiniband(content) else read_linkinfo
            network = _infiniband(read(content), nics, set(switches))
            cables += network.cables
            switches |= dict.fromkeys(network.switches)
            notes += network.notes
        elif looks_like_lldp(content):
            neighbors.setdefault(_server_of(where, nics), []).extend(read_lldp(content))
        else:
            raise TopologyError("collc does not recognize this dump", where=content.at(1), hint=f"known: {KNOWN}")
    if neighbors:
        network = _lldp(neighbors, nics, set(switches))
        cables += network.cables
        switches |= dict.fromkeys(network.switches)
        notes += network.notes
    if not any(cable.server for cable in cables):
        names = ", ".join(sorted({nic.server for nic in nics})[:3])
        raise TopologyError(
            f"no dump shows a NIC of the servers {names} ...",
            where=dumps[0][0],
            hint="names of hosts and NICs, GUIDs or interfaces must be those of the probed files",
        )
    cabled = {cable.a for cable in cables}
    uncabled = Counter(nic.server for nic in nics if nic.vertex not in cabled)
    if uncabled:
        some = ", ".join(f"{nic.vertex}" for nic in nics if nic.vertex not in cabled)
        notes.append(f"network: no dump shows {some if len(some) < 200 else some[:200] + ' ...'}: no network link")
    return with_spine(prune_switches(Network(tuple(switches), tuple(cables), tuple(notes))))


def _text(raw: str, where: str) -> Text:
    lines = raw.removeprefix("\ufeff").split("\n")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE and not raw.lstrip().startswith("{"):
            raise TopologyError("the line is too long for a dump", where=f"{where}:{number}")
    return Text(where, tuple(line.rstrip() for line in lines))


def _infiniband(fabric: Fabric, nics: Sequence[Nic], taken: set[str]) -> Network:
    by_guid = {nic.guid: nic for nic in nics if nic.guid}
    by_name = {_words(f"{nic.server} {nic.local_name}"): nic for nic in nics}
    by_name |= {_words(f"{nic.server.partition('.')[0]} {nic.local_name}"): nic for nic in nics}
    # ibnetdiscover calls the first adapter of a host "HCA-1" if udev has given it no name.
    order: dict[str, list[Nic]] = {}
    for nic in sorted(nics, key=lambda nic: natural(nic.local_name)):
        order.setdefault(nic.server, []).append(nic)
    for server, adapters in order.items():
        for i, nic in enumerate(adapters, 1):
            by_name.setdefault(_words(f"{server} HCA-{i}"), nic)
    nic_of = {guid: by_guid.get(guid) or by_name.get(_words(name)) for guid, name in fabric.adapters.items()}
    # Another host's adapter may have the description of a NIC. It is not this NIC if the dump has the NIC's GUID.
    nic_at = {g: n for g, n in nic_of.items() if n and (n.guid is None or n.guid == g or n.guid not in fabric.adapters)}
    names = _switch_names(fabric.switches, taken | {nic.vertex for nic in nics})
    speeds: dict[tuple[str, str, str], Fraction] = {}
    without_speed = 0
    for ends, gbps in fabric.cables.items():
        (one, _), (two, _) = sorted(ends, key=lambda end: end[0] in fabric.switches)
        if two not in names:
            continue  # a cable between two adapters
        own = nic_at.get(one)
        if own is not None:
            key = (own.vertex, names[two], own.server)
        elif one in names:
            key = (min(names[one], names[two]), max(names[one], names[two]), "")
        else:
            continue
        without_speed += gbps is None
        # The NIC's speed limits the cable's speed, and replaces it if the dump has none.
        speed = min(gbps or own.gbps, own.gbps) if own else gbps
        if speed is not None:
            speeds[key] = speeds.get(key, Fraction(0)) + speed
    cables = [Cable(a, b, gbps, server) for (a, b, server), gbps in speeds.items()]
    notes = [f"network: as {fabric.source} shows ({len(fabric.switches)} switches, {len(fabric.adapters)} adapters)"]
    if without_speed:
        notes.append(
            f"network: {without_speed} cables of {fabric.source} have no speed: that of the NIC; between switches none"
        )
    return Network(tuple(names.values()), tuple(cables), tuple(notes))


def _words(text: str) -> str:
    """Returns the first two words of a description, such as ``node17 mlx5_0``, whatever separates them."""
    return " ".join(re.split(r"[\s/:]+", text.strip().lower())[:2])


def _switch_names(switches: Mapping[str, str], taken: set[str]) -> dict[str, str]:
    """Returns a vertex name for each switch: from its description if no other has the same name, else from its GUID."""
    plain = {guid: _name(description) for guid, description in switches.items()}
    count = Counter(plain.values())
    names = {}
    for guid, name in plain.items():
        is_usable = name and count[name] == 1 and name_problem(name) is None and name not in taken
        names[guid] = name if is_usable else f"sw-{guid}"
    return names


def _name(description: str) -> str:
    """Returns the name in ``MF0;leaf1:MQM8700/U1`` or ``leaf1``; "" for a maker's default description."""
    text = description.partition(";")[2] or description
    text = text.partition(":")[0] if ";" in description else text
    if "mellanox" in text.lower() or "technologies" in text.lower():
        return ""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.")[:MAX_NAME]


def _server_of(where: str, nics: Sequence[Nic]) -> str:
    """Returns the server whose name begins the name of a file: ``node17.json``, ``node17.lldp.json``."""
    servers = sorted({nic.server for nic in nics}, key=len, reverse=True)
    base = Path(where).name
    for server in servers:
        if base == server or base.startswith(f"{server}."):
            return server
    raise TopologyError(
        "a dump of LLDP is of one server, and this name says of none",
        where=where,
        hint=f"call it SERVER.json, for example {servers[0]}.json" if servers else "no server has a NIC",
    )


def _lldp(neighbors: Mapping[str, Sequence[Neighbor]], nics: Sequence[Nic], taken: set[str]) -> Network:
    known = {}
    for nic in nics:
        for name in filter(None, (nic.local_name, nic.interface)):
            known[nic.server, name] = nic
    chassis = {n.chassis: n.name for neighbor_list in neighbors.values() for n in neighbor_list}
    names = _chassis_names(chassis, taken | {nic.vertex for nic in nics})
    cables: dict[str, Cable] = {}
    for server, neighbor_list in neighbors.items():
        for neighbor in neighbor_list:
            own = known.get((server, neighbor.interface))
            if own and own.vertex not in cables:
                cables[own.vertex] = Cable(own.vertex, names[neighbor.chassis], own.gbps, server)
    notes = [f"network: switches next to {len(neighbors)} servers as lldpctl shows them"]
    used = {cable.b for cable in cables.values()}
    return Network(tuple(n for n in names.values() if n in used), tuple(cables.values()), tuple(notes))


def _chassis_names(chassis: Mapping[str, str], taken: set[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for ident, name in chassis.items():
        plain = re.sub(r"[^A-Za-z0-9_.+-]+", "-", name or ident).strip("-.")[: MAX_NAME - 8]
        plain = plain if plain and name_problem(plain) is None else f"sw-{plain}"[: MAX_NAME - 8]
        names[ident] = free_name(plain, taken | set(names.values()))
    return names
