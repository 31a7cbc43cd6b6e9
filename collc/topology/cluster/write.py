"""Writes a cluster as one topology file: a template for each kind, the differences of odd servers, the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from collc.errors import TopologyError
from collc.topology.cluster.fold import kind_lines, odd_lines
from collc.topology.cluster.model import Cable, Cluster, Kind
from collc.topology.dump import assumes_lines, comment, link_lines, name_list, vertex_lines, word
from collc.topology.model import Link, LinkKind, Vertex, VertexKind
from collc.topology.names import decimal_text

_MAX_WIDTH = 118


def dumps_cluster(cluster: Cluster) -> str:
    """Returns the cluster as a topology file. Kinds, odd servers and assumptions are comments at the top.

    Raises:
        TopologyError: a speed has no exact decimal text.
    """
    notes = [*kind_lines(cluster.kinds), *odd_lines(cluster.kinds), *cluster.network.notes, *cluster.notes]
    lines = [line for note in notes for line in _wrap(comment(note))]
    lines += ["format: collc-topology/1", f"name: {word(cluster.name)}"]
    lines += assumes_lines([LinkKind.NET] if cluster.network.assumed else [])
    single = len(cluster.kinds) == 1
    if single:
        kind = cluster.kinds[0]
        lines += ["template:", *_template(kind, "  ")]
        lines += name_list("servers: ", [word(s.name) for s in kind.servers])
    else:
        lines.append("templates:")
        for kind in cluster.kinds:
            lines += [f"  {word(kind.name)}:", *_template(kind, "    ")]
        lines.append("servers:")
        for kind in cluster.kinds:
            lines += name_list(f"  {word(kind.name)}: ", [word(s.name) for s in kind.servers])
    lines += _outside(cluster)
    return "\n".join(lines) + "\n"


def _wrap(note: str) -> list[str]:
    lines, line = [], "#"
    for part in note.split():
        if len(line) + len(part) + 1 > _MAX_WIDTH and line != "#":
            lines.append(line)
            line = "#  "
        line += f" {part}"
    return [*lines, line]


def _template(kind: Kind, indent: str) -> list[str]:
    lines = assumes_lines(kind.template.assumes)
    lines += vertex_lines(kind.template.vertices, kind.template.gpu_model)
    if kind.template.links:
        lines += ["links:", *link_lines(kind.template.links)]
    return [indent + line for line in lines]


def _outside(cluster: Cluster) -> list[str]:
    """Returns the lines after the templates and servers: vertices, `remove` and `links` of the file itself."""
    vertices = [domain.switch for domain in cluster.domains]
    vertices += [Vertex(name, VertexKind.SWITCH) for name in cluster.network.switches]
    removals: list[str] = []
    links: list[Link] = []
    removed: set[str] = set()
    for kind in cluster.kinds:
        for server, odd in kind.odd.items():
            own = f"{server}."
            removed |= {own + name for name in odd.gone}
            removals += [word(own + name) for name in odd.gone]
            vertices += [
                Vertex(own + v.name, v.kind, v.multicast, v.reduce, v.memory_gbps, v.port) for v in odd.vertices
            ]
            have = {(k.src, k.dst, k.kind) for k in odd.links}
            for a, b, link_kind in odd.gone_links:
                removals.append(f"[{word(own + a)}, {word(own + b)}, {link_kind.value}]")
                # `remove` removes both directions. Add the reverse direction again if the server has it.
                links += [
                    replace(k, src=own + k.src, dst=own + k.dst)
                    for k in kind.template.links
                    if (k.src, k.dst, k.kind) == (b, a, link_kind)
                    and (k.src, k.dst, k.kind) not in have
                    and any((m.src, m.dst, m.kind) == (b, a, link_kind) for m in _machine(kind, server))
                ]
            links += [replace(k, src=own + k.src, dst=own + k.dst) for k in odd.links]
    lines = vertex_lines(vertices, None)
    lines += name_list("remove: ", removals) if removals else []
    wires = [*link_lines(links), *_domains(cluster), *_cables(cluster, removed)]
    return [*lines, "links:", *wires] if wires else lines


def _machine(kind: Kind, server: str) -> Sequence[Link]:
    return next(s.machine.links for s in kind.servers if s.name == server)


def _domains(cluster: Cluster) -> list[str]:
    """Returns the lines of NVLinks into domains: one with `each.` for a GPU that all servers have alike."""
    names = {s.name: {own: new for new, own in s.real.items()} for kind in cluster.kinds for s in kind.servers}
    kind_of = {s.name: kind for kind in cluster.kinds for s in kind.servers}
    single = len(cluster.kinds) == 1
    lines = []
    for domain in cluster.domains:
        groups: dict[tuple[str, str, Fraction, int], list[str]] = {}
        for server, link in domain.links:
            gpu = names[server].get(link.src, link.src)
            groups.setdefault((kind_of[server].name, gpu, link.gbps, link.lanes), []).append(server)
        for (kind, gpu, gbps, lanes), servers in groups.items():
            is_alike = len(servers) == len(next(k for k in cluster.kinds if k.name == kind).servers)
            each = ["each" if single else f"each.{kind}"]
            ends = [f"{end}.{gpu}" for end in (each if is_alike else servers)]
            links = [Link(end, domain.switch.name, LinkKind.NVSWITCH, gbps, lanes=lanes) for end in ends]
            lines += link_lines([k for one in links for k in (one, replace(one, src=one.dst, dst=one.src))])
    return lines


def _cables(cluster: Cluster, removed: set[str]) -> list[str]:
    """Returns the lines of the cables: one with `each.` for a cable that all servers of a kind have."""
    groups: dict[tuple[str, str, str, Fraction], list[Cable]] = {}
    between_switches: list[Cable] = []
    kind_of = {s.name: kind for kind in cluster.kinds for s in kind.servers}
    for cable in cluster.network.cables:
        if cable.server:
            groups.setdefault((kind_of[cable.server].name, cable.nic, cable.b, cable.gbps), []).append(cable)
        else:
            between_switches.append(cable)
    lines = []
    kinds = {kind.name: kind for kind in cluster.kinds}
    single = len(kinds) == 1
    for (kind, nic, switch, gbps), cables in groups.items():
        # `each.` skips servers without the NIC. A NIC that only a minority of servers has is not in the template.
        servers = [s.name for s in kinds[kind].servers if f"{s.name}.{nic}" not in removed]
        in_template = any(v.name == nic for v in kinds[kind].template.vertices)
        if len(cables) == len(servers) > 1 and in_template:
            end = f"each.{nic}" if single else f"each.{kind}.{nic}"
            lines.append(_cable(end, switch, gbps))
        else:
            lines += [_cable(cable.a, switch, gbps) for cable in cables]
    return [*lines, *(_cable(cable.a, cable.b, cable.gbps) for cable in between_switches)]


def _cable(a: str, b: str, gbps: Fraction) -> str:
    text = decimal_text(gbps)
    if text is None:
        raise TopologyError(f"{gbps} cannot be written as a decimal number", where=f"link {a} -> {b}")
    return f"  - {{between: [{word(a)}, {word(b)}], kind: {LinkKind.NET.value}, gbps: {text}}}"
