"""Folds equal servers into one template, and describes each odd server by its difference from the template.

The template of a kind has the vertices and links that at least half of its servers have, each in the form that is most
frequent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collc.topology.cluster.align import MIN_SHARED_RATIO, align
from collc.topology.cluster.model import Difference, Kind, Server
from collc.topology.cluster.words import link_words, vertex_words
from collc.topology.model import Device, Link, LinkKind, Port, Topology, Vertex, VertexKind
from collc.topology.names import name_problem

Pair = tuple[str, str, LinkKind]


@dataclass
class _Class:
    """Servers with exactly equal topologies.

    Attributes:
        machine: their topology, with the names of its kind.
        real: names in `machine` -> the servers' own names, where the two differ.
    """

    servers: list[Server]
    machine: Topology
    real: dict[str, str]


def fold(servers: Sequence[Server]) -> tuple[Kind, ...]:
    """Returns the kinds of servers. The devices of odd servers get the names of the devices at the same place.

    A kind begins with the largest set of equal servers that no earlier kind includes.

    Args:
        servers: the servers, each with a different name.
    """
    classes: dict[object, _Class] = {}
    for server in servers:
        classes.setdefault(_facts(server.machine), _Class([], server.machine, {})).servers.append(server)
    groups: list[list[_Class]] = []
    for equal in sorted(classes.values(), key=lambda c: -len(c.servers)):
        for group in groups:
            machine, real = align(equal.machine, group[0].machine)
            if _is_same_kind(machine, group[0].machine):
                group.append(_Class(equal.servers, machine, real))
                break
        else:
            groups.append([equal])
    names = {server.name for server in servers}
    order = {server.name: i for i, server in enumerate(servers)}
    return tuple(_kind(group, names, order) for group in groups)


def _facts(machine: Topology) -> object:
    """Returns a key that is equal for equal machines. It ignores identities of GPUs and NICs and the order of links."""
    vertices = tuple((v, v.memory_gbps, v.port and (v.port.gbps, v.port.up)) for v in machine.vertices)
    return vertices, frozenset(machine.links), machine.gpu_model


def _is_same_kind(a: Topology, b: Topology) -> bool:
    if a.gpu_model != b.gpu_model:
        return False
    kinds = {v.name: v.kind for v in a.vertices}
    if any(kinds.get(v.name, v.kind) is not v.kind for v in b.vertices):
        return False
    one, other = ({v.name for v in m.vertices} | {_pair(k) for k in m.links} for m in (a, b))
    return len(one & other) >= MIN_SHARED_RATIO * len(one | other)


def _pair(link: Link) -> Pair:
    return link.src, link.dst, link.kind


def _kind(group: Sequence[_Class], taken: set[str], order: Mapping[str, int]) -> Kind:
    template = _template(group)
    servers, odd = [], {}
    for one in group:
        difference = _difference(one, template)
        for server in one.servers:
            # Each server keeps its own ports and devices, under the new names of its vertices.
            vertices = tuple(
                replace(v, port=own.port, device=own.device)
                for v, own in zip(one.machine.vertices, _vertices_of(one, server), strict=True)
            )
            machine = replace(one.machine, name=server.name, vertices=vertices)
            servers.append(replace(server, machine=machine, real=one.real))
            if difference.words:
                odd[server.name] = difference
    servers.sort(key=lambda server: order[server.name])
    return Kind(_name(template, taken), template, tuple(servers), odd)


def _vertices_of(one: _Class, server: Server) -> list[Vertex]:
    """Returns the server's vertices, in the order of the class's vertices, whose names may differ.

    A switch that `align` added is not in the server's topology; the class's vertex then takes its place.
    """
    own = {v.name: v for v in server.machine.vertices}
    return [own.get(one.real.get(v.name, v.name), v) for v in one.machine.vertices]


def _common_devices(group: Sequence[_Class]) -> dict[str, Device]:
    """Returns the bus id of each GPU that has the same one in every server of a kind; without UUIDs."""
    bus_ids: dict[str, set[str | None]] = {}
    for one in group:
        for server in one.servers:
            for v, own in zip(one.machine.vertices, _vertices_of(one, server), strict=True):
                bus_ids.setdefault(v.name, set()).add(own.device.pci if own.device else None)
    common = {name: next(iter(buses)) for name, buses in bus_ids.items() if len(buses) == 1}
    count = Counter(common.values())
    return {name: Device(pci) for name, pci in common.items() if pci and count[pci] == 1}


def _common_cards(group: Sequence[_Class]) -> dict[str, tuple[str | None, str | None]]:
    """Returns (interface, bus id) of each vertex.

    Each is None unless all servers of a kind agree on it and no other vertex has it.
    """
    interfaces: dict[str, set[str | None]] = {}
    buses: dict[str, set[str | None]] = {}
    for one in group:
        for server in one.servers:
            for v, own in zip(one.machine.vertices, _vertices_of(one, server), strict=True):
                interfaces.setdefault(v.name, set()).add(own.port.interface if own.port else None)
                buses.setdefault(v.name, set()).add(own.port.pci if own.port else None)
    interface_of, bus_of = _only(interfaces), _only(buses)
    return {name: (interface_of[name], bus_of[name]) for name in interfaces}


def _only(candidates: Mapping[str, set[str | None]]) -> dict[str, str | None]:
    """Returns the value of each name; None if a name has several values or another name has the same value."""
    unique = {name: next(iter(values)) if len(values) == 1 else None for name, values in candidates.items()}
    count = Counter(unique.values())
    return {name: text if count[text] == 1 else None for name, text in unique.items()}


def _name(template: Topology, taken: set[str]) -> str:
    """Returns a name such as ``h100x8`` that no server and no other kind has, and adds it to `taken`."""
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
            vertices.setdefault(v.name, Counter())[replace(v, port=None, device=None, domain=None)] += len(one.servers)
            ports.setdefault(v.name, Counter())[v.port and v.port.anonymous()] += len(one.servers)
        for link in one.machine.links:
            links.setdefault(_pair(link), Counter())[link] += len(one.servers)
    devices = _common_devices(group)
    cards = _common_cards(group)
    vertex_list = []
    for name, forms in vertices.items():
        if 2 * forms.total() >= total:
            port = max(ports[name].items(), key=lambda item: item[1])[0]
            interface, pci = cards[name]
            port = port and replace(port, interface=interface, pci=pci)
            vertex_list.append(replace(forms.most_common(1)[0][0], port=port, device=devices.get(name)))
    names = {v.name for v in vertex_list}
    wires = [
        max(forms.items(), key=lambda item: (item[1], item[0].gbps))[0]
        for (a, b, _), forms in links.items()
        if 2 * forms.total() >= total and {a, b} <= names
    ]
    order = list(VertexKind)
    vertex_list.sort(key=lambda v: order.index(v.kind))
    first = group[0].machine
    kinds = {kind for one in group for kind in one.machine.assumes}
    assumes = tuple(kind for kind in LinkKind if kind in kinds)
    inside = {"server0": tuple(names)}
    return Topology(first.name, tuple(vertex_list), tuple(wires), inside, (), first.gpu_model, assumes=assumes)


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
    """Returns each pair once. `remove` removes both directions, so the writer adds again what the server still has."""
    pairs: dict[tuple[frozenset[str], LinkKind], Pair] = {}
    for link in links:
        pairs.setdefault((frozenset((link.src, link.dst)), link.kind), _pair(link))
    return tuple(pairs.values())


def odd_lines(kinds: Sequence[Kind]) -> list[str]:
    """Returns one line for each group of odd servers with equal differences, such as ``node17: no NIC mlx5_3``."""
    by_words: dict[tuple[str, ...], list[str]] = {}
    for kind in kinds:
        for server in kind.servers:
            if server.name in kind.odd:
                by_words.setdefault(kind.odd[server.name].words, []).append(server.name)
    return [f"{_shorten(names)}: {'; '.join(_short(words))}" for words, names in by_words.items()]


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:7])} and {len(names) - 7} more"


def _short(words: Sequence[str]) -> Sequence[str]:
    return words if len(words) <= 6 else [*words[:5], f"and {len(words) - 5} more differences"]


def kind_lines(kinds: Sequence[Kind]) -> list[str]:
    """Returns one line for each kind, with the numbers of servers, GPUs, NICs and odd servers."""
    lines = []
    for kind in kinds:
        nics = sum(v.kind is VertexKind.NIC for v in kind.template.vertices)
        what = f"{len(kind.template.gpus)} GPUs{f' ({kind.template.gpu_model})' if kind.template.gpu_model else ''}"
        odd = f"; {len(kind.odd)} of them odd" if kind.odd else ""
        count = len(kind.servers)
        lines.append(f"{kind.name}: {count} server{'s' * (count != 1)} with {what} and {nics} NICs{odd}")
    return lines
