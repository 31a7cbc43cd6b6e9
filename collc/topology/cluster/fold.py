"""Equal servers become one template, and odd ones what they lack of it, in the file and in words.

The template of a kind has what at least half of its servers have, at the speed that most of them have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from collc.topology.cluster.align import align
from collc.topology.cluster.model import Difference, Kind, Server
from collc.topology.cluster.words import link_words, vertex_words
from collc.topology.model import Device, Link, LinkKind, Port, Topology, Vertex, VertexKind
from collc.topology.names import name_problem

# Servers of one kind share at least this of all vertices and links that either has.
_ALIKE = Fraction(3, 5)

Pair = tuple[str, str, LinkKind]


@dataclass
class _Class:
    """Servers that are equal to the letter; `machine` may have been renamed to the names of its group."""

    servers: list[Server]
    machine: Topology
    real: dict[str, str]


def fold(servers: Sequence[Server]) -> tuple[Kind, ...]:
    """Servers by kind, the largest kind first. Names of odd servers become those of the devices at the same place.

    Args:
        servers: with different names.
    """
    classes: dict[object, _Class] = {}
    for server in servers:
        classes.setdefault(_facts(server.machine), _Class([], server.machine, {})).servers.append(server)
    groups: list[list[_Class]] = []
    for one in sorted(classes.values(), key=lambda c: -len(c.servers)):
        for group in groups:
            machine, real = align(one.machine, group[0].machine)
            if _alike(machine, group[0].machine):
                group.append(_Class(one.servers, machine, real))
                break
        else:
            groups.append([one])
    taken = {server.name for server in servers}
    order = {server.name: i for i, server in enumerate(servers)}
    return tuple(_kind(group, taken, order) for group in groups)


def _facts(machine: Topology) -> object:
    """What makes two machines equal: not who made its NICs, and not the order of links."""
    vertices = tuple((v, v.memory_gbps, v.port and (v.port.gbps, v.port.up)) for v in machine.vertices)
    return vertices, frozenset(machine.links), machine.gpu_model


def _alike(a: Topology, b: Topology) -> bool:
    if a.gpu_model != b.gpu_model:
        return False
    kinds = {v.name: v.kind for v in a.vertices}
    if any(kinds.get(v.name, v.kind) is not v.kind for v in b.vertices):
        return False
    one, other = ({v.name for v in m.vertices} | {_pair(k) for k in m.links} for m in (a, b))
    return len(one & other) >= _ALIKE * len(one | other)


def _pair(link: Link) -> Pair:
    return link.src, link.dst, link.kind


def _kind(group: Sequence[_Class], taken: set[str], order: Mapping[str, int]) -> Kind:
    template = _template(group)
    servers, odd = [], {}
    for one in group:
        difference = _difference(one, template)
        for server in one.servers:
            # Ports and devices are each server's own, renamed as its vertices are.
            vertices = tuple(
                replace(v, port=own.port, device=own.device)
                for v, own in zip(one.machine.vertices, _own(one, server), strict=True)
            )
            machine = replace(one.machine, name=server.name, vertices=vertices)
            servers.append(replace(server, machine=machine, real=one.real))
            if difference.words:
                odd[server.name] = difference
    servers.sort(key=lambda server: order[server.name])
    return Kind(_name(template, taken), template, tuple(servers), odd)


def _own(one: _Class, server: Server) -> list[Vertex]:
    """The vertices of a server in the order of those of its class, which may be renamed.

    A switch that alignment put back is none of the server's: it stands for itself.
    """
    own = {v.name: v for v in server.machine.vertices}
    return [own.get(one.real.get(v.name, v.name), v) for v in one.machine.vertices]


def _common_devices(group: Sequence[_Class]) -> dict[str, Device]:
    """Bus ids of GPUs that have the same one in every server of a kind; UUIDs are each server's own."""
    found: dict[str, set[str | None]] = {}
    for one in group:
        for server in one.servers:
            for v, own in zip(one.machine.vertices, _own(one, server), strict=True):
                found.setdefault(v.name, set()).add(own.device.pci if own.device else None)
    common = {name: next(iter(buses)) for name, buses in found.items() if len(buses) == 1}
    count = Counter(common.values())
    return {name: Device(pci) for name, pci in common.items() if pci and count[pci] == 1}


def _common_cards(group: Sequence[_Class]) -> dict[str, tuple[str | None, str | None]]:
    """Interface and bus id of each NIC, as far as it has the same in every server of a kind and no other NIC has it."""
    interfaces: dict[str, set[str | None]] = {}
    buses: dict[str, set[str | None]] = {}
    for one in group:
        for server in one.servers:
            for v, own in zip(one.machine.vertices, _own(one, server), strict=True):
                interfaces.setdefault(v.name, set()).add(own.port.interface if own.port else None)
                buses.setdefault(v.name, set()).add(own.port.pci if own.port else None)
    named, placed = _only(interfaces), _only(buses)
    return {name: (named[name], placed[name]) for name in interfaces}


def _only(found: Mapping[str, set[str | None]]) -> dict[str, str | None]:
    """The one value of each name, None where it has several or others have it too."""
    one = {name: next(iter(values)) if len(values) == 1 else None for name, values in found.items()}
    count = Counter(one.values())
    return {name: text if count[text] == 1 else None for name, text in one.items()}


def _name(template: Topology, taken: set[str]) -> str:
    """Such as ``h100x8``; no server and no other kind is called so."""
    model = re.sub(r"[^a-z0-9]+", "-", (template.gpu_model or "gpu").lower()).strip("-")[:24] or "gpu"
    stem = f"{model}x{len(template.gpus)}"
    name, number = stem, 2
    while name in taken or name_problem(name):
        name, number = f"{stem}-{number}", number + 1
    taken.add(name)
    return name


def _template(group: Sequence[_Class]) -> Topology:
    total = sum(len(one.servers) for one in group)
    vertices: dict[str, Counter[Vertex]] = {}
    ports: dict[str, Counter[Port | None]] = {}
    links: dict[Pair, Counter[Link]] = {}
    for one in group:
        for v in one.machine.vertices:
            vertices.setdefault(v.name, Counter())[replace(v, port=None, device=None)] += len(one.servers)
            ports.setdefault(v.name, Counter())[v.port and v.port.anonymous()] += len(one.servers)
        for link in one.machine.links:
            links.setdefault(_pair(link), Counter())[link] += len(one.servers)
    devices = _common_devices(group)
    cards = _common_cards(group)
    kept = []
    for name, found in vertices.items():
        if 2 * found.total() >= total:
            port = max(ports[name].items(), key=lambda item: item[1])[0]
            interface, pci = cards[name]
            port = port and replace(port, interface=interface, pci=pci)
            kept.append(replace(found.most_common(1)[0][0], port=port, device=devices.get(name)))
    names = {v.name for v in kept}
    wires = [
        max(found.items(), key=lambda item: (item[1], item[0].gbps))[0]
        for (a, b, _), found in links.items()
        if 2 * found.total() >= total and {a, b} <= names
    ]
    order = list(VertexKind)
    kept.sort(key=lambda v: order.index(v.kind))
    first = group[0].machine
    return Topology(first.name, tuple(kept), tuple(wires), {"server0": tuple(names)}, (), first.gpu_model)


def _difference(one: _Class, template: Topology) -> Difference:
    own = {v.name: v for v in one.machine.vertices}
    model = {v.name: v for v in template.vertices}
    gone = [v for v in template.vertices if v.name not in own]
    added = [v for v in one.machine.vertices if v.name not in model]
    have = {_pair(k): k for k in one.machine.links}
    want = {_pair(k): k for k in template.links}
    left = set(own)
    gone_links = [k for k in want.values() if _pair(k) not in have and {k.src, k.dst} <= left]
    changed = [k for key, k in have.items() if want.get(key) != k]
    words = [
        *vertex_words(gone, added, own, model, one.real),
        *link_words(gone_links, changed, want, {v.name for v in added}, template, one.machine),
    ]
    return Difference(
        tuple(words),
        tuple(v.name for v in gone),
        _undirected(gone_links),
        tuple(replace(v, port=v.port and v.port.anonymous(), device=None) for v in added),
        tuple(changed),
    )


def _undirected(links: Sequence[Link]) -> tuple[Pair, ...]:
    """Each pair once; `remove` takes both directions, so a direction that is left is given again by the writer."""
    found: dict[tuple[frozenset[str], LinkKind], Pair] = {}
    for link in links:
        found.setdefault((frozenset((link.src, link.dst)), link.kind), _pair(link))
    return tuple(found.values())


def odd_lines(kinds: Sequence[Kind]) -> list[str]:
    """One line for each server that is not as its kind: ``node17: no NIC mlx5_3``. Equal servers share a line."""
    found: dict[tuple[str, ...], list[str]] = {}
    for kind in kinds:
        for server in kind.servers:
            if server.name in kind.odd:
                found.setdefault(kind.odd[server.name].words, []).append(server.name)
    return [f"{_few(names)}: {'; '.join(_short(words))}" for words, names in found.items()]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:7])} and {len(names) - 7} more"


def _short(words: Sequence[str]) -> Sequence[str]:
    return words if len(words) <= 6 else [*words[:5], f"and {len(words) - 5} more differences"]


def kind_lines(kinds: Sequence[Kind]) -> list[str]:
    """One line for each kind: how many servers, with what."""
    lines = []
    for kind in kinds:
        nics = sum(v.kind is VertexKind.NIC for v in kind.template.vertices)
        what = f"{len(kind.template.gpus)} GPUs{f' ({kind.template.gpu_model})' if kind.template.gpu_model else ''}"
        odd = f"; {len(kind.odd)} of them odd" if kind.odd else ""
        count = len(kind.servers)
        lines.append(f"{kind.name}: {count} server{'s' * (count != 1)} with {what} and {nics} NICs{odd}")
    return lines
