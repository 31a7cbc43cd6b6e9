"""What a machine may lose: one link, NIC, rail, switch plane or GPU, each once up to the machine's symmetry.

A link of several lanes loses one of them, in both directions. Lanes are the file's `count`; of links into NVSwitches
without one they follow from the model of the GPUs, and so does how many of them lead to each switch where the switches
are one vertex (NVIDIA's architecture white papers from Volta to Blackwell: six NVSwitches in HGX-2 boards and HGX A100,
four in HGX H100 and H200, of which two take 5 links of a GPU and two take 4, two in HGX B200, 18 in an NVL72 rack).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from collc.topology.canonical import labels_of, subdivide
from collc.topology.graphs import igraph
from collc.topology.model import GraphLink, Link, LinkKind, LossKind, PlanGraph, Topology, Vertex, VertexKind
from collc.topology.probe.models import find_model

_FAST = (LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI)
# Model -> links of a GPU to each NVSwitch of its board, where one vertex stands for all of them.
_PLANES = {
    "V100": (1,) * 6,
    "A100": (2,) * 6,
    "H100": (5, 5, 4, 4),
    "H200": (5, 5, 4, 4),
    "B200": (9, 9),
    "B300": (9, 9),
}
# GPUs of an NVL72 rack, and the links of each to the switches of the rack.
_RACK_GPUS, _RACK_PLANES = re.compile(r"GB[23]00"), (1,) * 18
_BOARD_GPUS = 16  # no board has more: HGX-2 and HGX A100


@dataclass(frozen=True)
class Loss:
    """One loss, for all that the machine's symmetry exchanges with it.

    Args:
        kind: what is lost.
        what: which, in words: ``gpu3``, or ``gpu0-gpu3, 1 of 2 nvlink``.
        gone: vertices that are lost; their links go with them.
        thinner: links (source, destination, kind) that lose lanes, and the GB/s that they keep, 0 for none.
        alike: how many losses of the machine this one stands for, itself included.
    """

    kind: LossKind
    what: str
    gone: tuple[str, ...] = ()
    thinner: tuple[tuple[str, str, LinkKind, Fraction], ...] = ()
    alike: int = 1


def without(topology: Topology, loss: Loss) -> Topology:
    """The machine after a loss. What is gone keeps its vertex and its number, and has no link."""
    gone = set(loss.gone)
    kept = {(a, b, kind): gbps for a, b, kind, gbps in loss.thinner}
    links = []
    for link in topology.links:
        gbps = kept.get((link.src, link.dst, link.kind), link.gbps)
        if gbps and link.src not in gone and link.dst not in gone:
            links.append(link if gbps == link.gbps else replace(link, gbps=gbps, lanes=1))
    return replace(topology, links=tuple(links))


def used_part(topology: Topology, kinds: Iterable[LinkKind]) -> Topology:
    """The machine as libraries compare it: links of some kinds, and inside one server no NICs and nothing that hangs
    below them alone. What no plan can use must not tell two machines apart."""
    wanted = set(kinds)
    links = [link for link in topology.links if link.kind in wanted]
    ranks = {v.name for v in topology.gpus}
    if len(topology.servers) == 1:
        nics = {v.name for v in topology.vertices if v.kind is VertexKind.NIC}
        links = [link for link in links if link.src not in nics and link.dst not in nics]
        while True:
            near: dict[str, set[str]] = {}
            for link in links:
                near.setdefault(link.src, set()).add(link.dst)
                near.setdefault(link.dst, set()).add(link.src)
            ends = {name for name, others in near.items() if len(others) == 1 and name not in ranks}
            if not ends:
                break
            links = [link for link in links if link.src not in ends and link.dst not in ends]
    used = ranks | {end for link in links for end in (link.src, link.dst)}
    vertices = tuple(v for v in topology.vertices if v.name in used)
    servers = {name: tuple(m for m in members if m in used) for name, members in topology.servers.items()}
    return replace(topology, vertices=vertices, links=tuple(links), servers=servers)


def single_losses(topology: Topology, kinds: Iterable[LinkKind], gpus: Sequence[str] | None = None) -> list[Loss]:
    """Every single loss, one of each orbit of the machine's symmetry, by kind and then in the order of the file.

    Args:
        kinds: links of other kinds are left out, and what only they join.
        gpus: those that plans are for [all]; a symmetry keeps them together.
    """
    part = used_part(topology, kinds)
    orbits = _Orbits(part, gpus)
    first: dict[object, Loss] = {}
    for loss in every_loss(part):
        key = loss.kind, orbits.of(loss), sorted(str(gbps) for *_, gbps in loss.thinner)
        known = first.get(repr(key))
        first[repr(key)] = loss if known is None else replace(known, alike=known.alike + 1)
    return list(first.values())


def every_loss(part: Topology) -> list[Loss]:
    """Every single loss of a machine, alike ones too: by kind, then in the order of the file."""
    every = [*_links(part), *_vertices(part), *_planes(part)]
    return sorted(every, key=lambda loss: list(LossKind).index(loss.kind))


def lanes_of(link: Link, topology: Topology) -> int:
    """How many lanes a link has: its count, or by the model of the GPUs."""
    model = find_model(topology.gpu_model) if topology.gpu_model else None
    if link.lanes > 1 or model is None or model.gbps is None or link.kind not in _FAST:
        return link.lanes
    lanes = link.gbps / model.gbps
    return int(lanes) if lanes.denominator == 1 and 1 <= lanes <= model.links else 1


def _links(part: Topology) -> Iterable[Loss]:
    known = {(k.src, k.dst, k.kind): k for k in part.links}
    seen: set[tuple[str, str, LinkKind]] = set()
    for link in part.links:
        if (link.dst, link.src, link.kind) in seen:
            continue
        seen.add((link.src, link.dst, link.kind))
        lanes = lanes_of(link, part)
        both = [k for k in (link, known.get((link.dst, link.src, link.kind))) if k is not None]
        keeps = tuple((k.src, k.dst, k.kind, k.gbps * (lanes - 1) / lanes) for k in both)
        number = f"1 of {lanes} " if lanes > 1 else ""
        yield Loss(LossKind.LINK, f"{link.src}-{link.dst}, {number}{link.kind.value}", thinner=keeps)


def _vertices(part: Topology) -> Iterable[Loss]:
    """GPUs, NICs, rails, and NVSwitches that are vertices of their own."""
    kinds: dict[str, set[LinkKind]] = {v.name: set() for v in part.vertices}
    for link in part.links:
        kinds[link.src].add(link.kind)
        kinds[link.dst].add(link.kind)
    server = {name: server for server, members in part.servers.items() for name in members}
    planes: dict[str, list[str]] = {}
    rails = False
    for vertex in part.vertices:
        if vertex.kind is VertexKind.GPU and len(part.gpus) > 2:
            yield Loss(LossKind.GPU, vertex.name, (vertex.name,))
        elif vertex.kind is VertexKind.NIC:
            yield Loss(LossKind.NIC, vertex.name, (vertex.name,))
        elif vertex.kind is VertexKind.SWITCH and kinds[vertex.name] == {LinkKind.NET}:
            rails = True
            yield Loss(LossKind.RAIL, vertex.name, (vertex.name,))
        elif vertex.kind is VertexKind.SWITCH and kinds[vertex.name] & set(_FAST):
            planes.setdefault(server.get(vertex.name, ""), []).append(vertex.name)
    for switches in planes.values():
        if len(switches) > 1:
            yield from (Loss(LossKind.PLANE, name, (name,)) for name in switches)
    if not rails:
        yield from _wired_rails(part)


def _wired_rails(part: Topology) -> Iterable[Loss]:
    """Rails without switches: the pieces into which the links of the network fall, where there are several."""
    net = [link for link in part.links if link.kind is LinkKind.NET]
    piece: dict[str, str] = {}

    def find(name: str) -> str:
        while piece.setdefault(name, name) != name:
            name = piece[name]
        return name

    for link in net:
        piece[find(link.src)] = find(link.dst)
    pieces: dict[str, list[Link]] = {}
    for link in net:
        pieces.setdefault(find(link.src), []).append(link)
    if len(pieces) > 1:
        for own in pieces.values():
            ends = list(dict.fromkeys(end for link in own for end in (link.src, link.dst)))
            lost = tuple((k.src, k.dst, k.kind, Fraction(0)) for k in own)
            yield Loss(LossKind.RAIL, f"the links of {ends[0]} and {len(ends) - 1} more NICs", thinner=lost)


def _planes(part: Topology) -> Iterable[Loss]:
    """Planes of a vertex that stands for all NVSwitches of a board: every GPU loses its links to one of them."""
    model = find_model(part.gpu_model) if part.gpu_model else None
    planes = _PLANES.get(model.name) if model is not None else None
    if planes is None or part.gpu_model is None:
        return
    in_rack = _RACK_GPUS.search(part.gpu_model) is not None
    planes = _RACK_PLANES if in_rack else planes
    fast = [link for link in part.links if link.kind in _FAST]
    for switch in part.vertices:
        own = [link for link in fast if switch.name in (link.src, link.dst)]
        if switch.kind is not VertexKind.SWITCH or not own or any(lanes_of(k, part) != sum(planes) for k in own):
            continue
        if not in_rack and sum(link.dst == switch.name for link in own) > _BOARD_GPUS:
            continue  # nobody knows how many switches this one stands for
        for number, lost in enumerate(planes):
            keeps = tuple((k.src, k.dst, k.kind, k.gbps * (sum(planes) - lost) / sum(planes)) for k in own)
            what = f"{switch.name}, switch {number} of {len(planes)} ({lost} of {sum(planes)} links)"
            yield Loss(LossKind.PLANE, what, thinner=keeps)


class _Orbits:
    """Which vertices and pairs of vertices the symmetries of a machine exchange."""

    def __init__(self, part: Topology, gpus: Sequence[str] | None) -> None:
        chosen = set(gpus) if gpus is not None else {v.name for v in part.gpus}
        order = sorted(part.vertices, key=lambda v: v.name not in chosen)
        self._number = number = {v.name: i for i, v in enumerate(order)}
        ends = [(number[k.src], number[k.dst], k.kind, k.gbps) for k in part.links]
        if len(part.servers) > 1:
            # Servers are vertices here: which GPUs share one decides over the links of a plan.
            for members in part.servers.values():
                ends += [(number[member], len(order), LinkKind.C2C, Fraction(1)) for member in members]
                order.append(Vertex("server", VertexKind.CPU))
        links = tuple(GraphLink(i, *end) for i, end in enumerate(ends))
        graph = PlanGraph(part.name, len(chosen), tuple(order), ("",) * len(order), links)
        colors, labels = labels_of(graph)
        edges = subdivide(colors, labels)
        rank = {color: i for i, color in enumerate(sorted(set(colors)))}
        drawn = igraph.Graph(n=len(colors), edges=edges)
        moves = drawn.automorphism_group(color=[rank[color] for color in colors])
        self._maps = [move[: len(order)] for move in moves]
        self._known: dict[frozenset[int], int] = {}
        self._count = 0

    def of(self, loss: Loss) -> int:
        """The orbit of a loss's place: its vertex, or the ends of its links."""
        ends = loss.gone or [end for a, b, _, _ in loss.thinner for end in (a, b)]
        start = frozenset(self._number[end] for end in ends)
        if start not in self._known:
            self._count += 1
            self._known[start] = self._count
            todo = [start]
            while todo:
                place = todo.pop()
                for image in self._maps:
                    moved = frozenset(image[v] for v in place)
                    if moved not in self._known:
                        self._known[moved] = self._count
                        todo.append(moved)
        return self._known[start]


def survivors(gpus: Sequence[str], loss: Loss) -> tuple[str, ...]:
    """The GPUs that are left, in their order."""
    return tuple(name for name in gpus if name not in loss.gone)
