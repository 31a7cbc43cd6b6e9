"""Fabric dumps -> the network between the probed servers: InfiniBand by GUID or description, LLDP by interface."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from collc.errors import TopologyError
from collc.topology.cluster.infiniband import Fabric, looks_like_infiniband, read_infiniband
from collc.topology.cluster.lldp import Neighbor, looks_like_lldp, read_lldp
from collc.topology.cluster.model import Cable, Network
from collc.topology.cluster.network import Nic, free_name, natural, prune_switches, with_spine
from collc.topology.names import MAX_NAME, name_problem
from collc.topology.probe.lines import MAX_LINE, Text

KNOWN = "ibnetdiscover, ibdiagnet's .lst, .db_csv or .ibnetdiscover, lldpctl -f json, json0 or keyvalue"
MAX_BYTES = 256 << 20


def fabric_network(dumps: Sequence[tuple[str, str]], nics: Sequence[Nic]) -> Network:
    """The network that dumps show.

    Args:
        dumps: (name of the file, text). One dump of InfiniBand shows the whole fabric; LLDP needs one file per server,
            called ``SERVER.*``.
        nics: the NICs of the servers.

    Raises:
        TopologyError: a file is none of the known dumps or damaged, or shows nothing of the servers.
    """
    cables: list[Cable] = []
    switches: dict[str, None] = {}
    notes: list[str] = []
    neighbors: dict[str, list[Neighbor]] = {}
    for where, raw in dumps:
        content = _text(raw, where)
        if looks_like_infiniband(content):
            found = _infiniband(read_infiniband(content), nics, set(switches))
            cables += found.cables
            switches |= dict.fromkeys(found.switches)
            notes += found.notes
        elif looks_like_lldp(content):
            neighbors.setdefault(_server_of(where, nics), []).extend(read_lldp(content))
        else:
            raise TopologyError("collc does not recognise this dump", where=content.at(1), hint=f"known: {KNOWN}")
    if neighbors:
        found = _lldp(neighbors, nics, set(switches))
        cables += found.cables
        switches |= dict.fromkeys(found.switches)
        notes += found.notes
    if not any(cable.server for cable in cables):
        names = ", ".join(sorted({nic.server for nic in nics})[:3])
        raise TopologyError(
            f"no dump shows a NIC of the servers {names} ...",
            where=dumps[0][0],
            hint="names of hosts and NICs, GUIDs or interfaces must be those of the probed files",
        )
    seen = {cable.a for cable in cables}
    lost = Counter(nic.server for nic in nics if nic.vertex not in seen)
    if lost:
        some = ", ".join(f"{nic.vertex}" for nic in nics if nic.vertex not in seen)
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
    # "HCA-1" is what ibnetdiscover calls an adapter that udev has not named: the first of its host.
    order: dict[str, list[Nic]] = {}
    for nic in sorted(nics, key=lambda nic: natural(nic.local_name)):
        order.setdefault(nic.server, []).append(nic)
    for server, adapters in order.items():
        for i, nic in enumerate(adapters, 1):
            by_name.setdefault(_words(f"{server} HCA-{i}"), nic)
    known = {guid: by_guid.get(guid) or by_name.get(_words(name)) for guid, name in fabric.adapters.items()}
    # Another host's adapter may be described as one of ours where ours is known by its GUID.
    place = {g: n for g, n in known.items() if n and (n.guid is None or n.guid == g or n.guid not in fabric.adapters)}
    names = _switch_names(fabric.switches, taken | {nic.vertex for nic in nics})
    found: dict[tuple[str, str, str], Fraction] = {}
    guessed = 0
    for ends, gbps in fabric.cables.items():
        (one, _), (two, _) = sorted(ends, key=lambda end: end[0] in fabric.switches)
        if two not in names:
            continue  # two adapters back to back
        own = place.get(one)
        if own is not None:
            key = (own.vertex, names[two], own.server)
        elif one in names:
            key = (min(names[one], names[two]), max(names[one], names[two]), "")
        else:
            continue
        guessed += gbps is None
        # What the adapter can do bounds what the cable says, and is all there is where the dump tells no speed.
        speed = min(gbps or own.gbps, own.gbps) if own else gbps
        if speed is not None:
            found[key] = found.get(key, Fraction(0)) + speed
    cables = [Cable(a, b, gbps, server) for (a, b, server), gbps in found.items()]
    notes = [f"network: as {fabric.source} shows ({len(fabric.switches)} switches, {len(fabric.adapters)} adapters)"]
    if guessed:
        notes.append(
            f"network: {guessed} cables of {fabric.source} have no speed: that of the NIC; between switches none"
        )
    return Network(tuple(names.values()), tuple(cables), tuple(notes))


def _words(text: str) -> str:
    """``node17 mlx5_0``, however a description separates the two."""
    return " ".join(re.split(r"[\s/:]+", text.strip().lower())[:2])


def _switch_names(switches: Mapping[str, str], taken: set[str]) -> dict[str, str]:
    """Vertices for switches by what they are called, where that tells them apart, else by GUID."""
    plain = {guid: _name(description) for guid, description in switches.items()}
    count = Counter(plain.values())
    found = {}
    for guid, name in plain.items():
        good = name and count[name] == 1 and name_problem(name) is None and name not in taken
        found[guid] = name if good else f"sw-{guid}"
    return found


def _name(description: str) -> str:
    """A name from ``MF0;leaf1:MQM8700/U1`` or ``leaf1``; "" from the descriptions that all switches of a maker have."""
    text = description.partition(";")[2] or description
    text = text.partition(":")[0] if ";" in description else text
    if "mellanox" in text.lower() or "technologies" in text.lower():
        return ""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.")[:MAX_NAME]


def _server_of(where: str, nics: Sequence[Nic]) -> str:
    """The server whose name begins the name of a file: ``node17.json``, ``node17.lldp.json``."""
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
    chassis = {n.chassis: n.name for found in neighbors.values() for n in found}
    names = _chassis_names(chassis, taken | {nic.vertex for nic in nics})
    cables: dict[str, Cable] = {}
    for server, found in neighbors.items():
        for neighbour in found:
            own = known.get((server, neighbour.interface))
            if own and own.vertex not in cables:
                cables[own.vertex] = Cable(own.vertex, names[neighbour.chassis], own.gbps, server)
    notes = [f"network: switches next to {len(neighbors)} servers as lldpctl shows them"]
    used = {cable.b for cable in cables.values()}
    return Network(tuple(n for n in names.values() if n in used), tuple(cables.values()), tuple(notes))


def _chassis_names(chassis: Mapping[str, str], taken: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for ident, name in chassis.items():
        plain = re.sub(r"[^A-Za-z0-9_.+-]+", "-", name or ident).strip("-.")[: MAX_NAME - 8]
        plain = plain if plain and name_problem(plain) is None else f"sw-{plain}"[: MAX_NAME - 8]
        found[ident] = free_name(plain, taken | set(found.values()))
    return found
