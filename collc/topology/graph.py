"""Builds the `PlanGraph` of a topology and an allocation: exactly the links that a plan uses.

docs/topology.md has the rules. Inside a server, or several servers that fast links join, a plan uses only the fast
links if they strongly connect the chosen GPUs. Else every pair of GPUs that they do not join directly also gets its
PCIe path. Between servers, a plan uses network links and the paths between GPUs and NICs. If the GPUs inside a server
do not use PCIe, these paths are kept apart where possible, so that they carry only traffic between servers.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from collc.errors import TopologyError, UsageError
from collc.limits import check_entries
from collc.topology.model import GraphLink, Link, LinkKind, PlanGraph, Topology, VertexKind
from collc.topology.paths import Adjacency, on_shortest_paths, reachable, strongly_connected, turned
from collc.topology.prune import useful_links

FAST = frozenset({LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI})
HOST = frozenset({LinkKind.PCIE, LinkKind.C2C})
NET = frozenset({LinkKind.NET})
_FEWER = "choose fewer GPUs with --gpus, or give the topology the links that it lacks"


def plan_graph(
    topology: Topology,
    gpus: Sequence[str] | None = None,
    links: str | None = None,
    relay: bool = False,
    *,
    may_relay: bool = True,
) -> PlanGraph:
    """Returns the graph of a plan for some GPUs of a topology.

    Args:
        gpus: names in rank order; None: all GPUs in the order of the topology.
        links: ``nvlink,pcie`` uses exactly the links of these kinds, ``all`` uses every link; None follows the rules.
        relay: idle GPUs of the servers may forward; they contribute no data to the collective.
        may_relay: True if the user could choose `relay`, so that an error may recommend it.

    Raises:
        UsageError: a GPU or a kind of link does not exist.
        TopologyError: the links do not connect all GPUs.
    """
    chosen = chosen_gpus(topology, gpus)
    parts = Parts(topology, chosen, relay)
    picked = _override(parts, links) if links is not None else _by_rules(parts)
    edges = useful_links(picked, chosen)
    if lost := lost_gpu(chosen, edges):
        over = f"over {links} links" if links else "over the links of this topology"
        problem = f"{lost} cannot be reached from {chosen[0]} {over}"
        raise TopologyError(problem, where=topology.name, hint=_way_out(topology, chosen, links, relay, may_relay))
    return assemble(topology, parts, chosen, edges)


def chosen_gpus(topology: Topology, gpus: Sequence[str] | None) -> list[str]:
    """Returns the names of an allocation in rank order; all GPUs if `gpus` is None.

    Raises:
        UsageError: a GPU does not exist or is listed twice, or the list is empty.
    """
    names = [v.name for v in topology.gpus]
    chosen = names if gpus is None else list(gpus)
    if not chosen:
        raise UsageError("no GPU is chosen", where=topology.name, hint="name at least one with --gpus")
    existing, listed = frozenset(names), set[str]()
    for name in chosen:
        if name not in existing:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"it has {len(names)}, the first is `{names[0]}`"
            raise UsageError(f"no GPU is called `{name}`", where=topology.name, hint=hint)
        if name in listed:
            raise UsageError(f"GPU {name} is listed twice", where=topology.name, hint="each GPU is one rank")
        listed.add(name)
    return chosen


class Parts:
    """The parts of a topology that an allocation can use: islands of servers, and the vertices that may forward.

    An island is a set of servers that fast links join, such as the trays of an NVL72 rack; usually it is one server.
    Islands without a chosen GPU are not used. Vertices outside all servers, such as network switches, are used.
    """

    def __init__(self, topology: Topology, chosen: Sequence[str], relay: bool) -> None:
        self.topology = topology
        self.server = {name: server for server, members in topology.servers.items() for name in members}
        self.kind = {v.name: v.kind for v in topology.vertices}
        self.island = self._islands(topology.links)
        self.chosen = frozenset(chosen)
        used = {self.island[gpu] for gpu in chosen}
        gpus = {v.name for v in topology.gpus}
        near = {name for name in self.kind if self.island[name] in used}
        outside = {name for name in self.kind if name not in self.server and name not in gpus}
        self.ends = self.chosen | ({name for name in gpus if name in near} if relay else frozenset())
        self.alive = self.ends | ((near | outside) - gpus)
        self.links = [link for link in topology.links if link.src in self.alive and link.dst in self.alive]
        self.islands: dict[str, list[str]] = defaultdict(list)
        for gpu in chosen:
            self.islands[self.island[gpu]].append(gpu)
        # Links inside and usable vertices are grouped by island, because there may be thousands of servers.
        self._inside: dict[str, list[Link]] = defaultdict(list)
        for link in self.links:
            if self.island[link.src] == self.island[link.dst]:
                self._inside[self.island[link.src]].append(link)
        self.members: dict[str, list[str]] = defaultdict(list)
        for name in self.kind:
            if name in self.alive:
                self.members[self.island[name]].append(name)

    def _islands(self, links: Iterable[Link]) -> dict[str, str]:
        """Returns the name of each vertex's island: the first, by name, of the servers and lone vertices in it."""
        parent: dict[str, str] = {}

        def find(group: str) -> str:
            while parent.get(group, group) != group:
                parent[group] = parent.get(parent[group], parent[group])
                group = parent[group]
            return group

        def group(name: str) -> str:
            return f"server {self.server[name]}" if name in self.server else f"vertex {name}"

        for link in links:
            if link.kind in FAST:
                a, b = find(group(link.src)), find(group(link.dst))
                if a != b:
                    parent[max(a, b)] = min(a, b)
        return {name: find(group(name)) for name in self.kind}

    def links_of(self, island: str) -> list[Link]:
        """Returns all usable links inside an island."""
        return self._inside.get(island, [])

    def middle_of(self, island: str) -> set[str]:
        """Returns the switches and CPUs of an island, through which its paths lead."""
        members = self.members.get(island, [])
        return {name for name in members if self.kind[name] in (VertexKind.SWITCH, VertexKind.CPU)}

    def within(self, island: str, kinds: Set[LinkKind]) -> list[Link]:
        """Returns the links of some kinds inside an island, without links of NICs."""
        return [
            link
            for link in self.links_of(island)
            if link.kind in kinds and VertexKind.NIC not in (self.kind[link.src], self.kind[link.dst])
        ]


def _override(parts: Parts, text: str) -> list[Link]:
    kinds = [kind.value for kind in LinkKind]
    words = [word.strip() for word in text.split(",")]
    if words == ["all"]:
        return parts.links
    for word in words:
        if word not in kinds:
            matches = difflib.get_close_matches(word, kinds, n=1)
            hint = f"did you mean `{matches[0]}`?" if matches else "kinds: " + ", ".join([*kinds, "all"])
            raise UsageError(f"no kind of link is called `{word}`", where=f"--links {text}", hint=hint)
    return [link for link in parts.links if link.kind.value in words]


def _by_rules(parts: Parts) -> list[Link]:
    picked: list[Link] = []
    without_host = {}
    for island, gpus in parts.islands.items():
        inside, uses_host = _inside(parts, island, gpus)
        picked += inside
        without_host[island] = not uses_host
    if len(parts.islands) > 1:
        picked += _between(parts, without_host)
    # A PCIe link may be on a path inside an island and on a path between islands.
    return list({(link.src, link.dst, link.kind): link for link in picked}.values())


def _inside(parts: Parts, island: str, gpus: Sequence[str]) -> tuple[list[Link], bool]:
    """Returns the links that the GPUs of an island use among themselves, and True if they include PCIe paths."""
    if len(gpus) == 1:
        return [], False
    fast = parts.within(island, FAST)
    forwards = Adjacency(fast)
    if strongly_connected(forwards, gpus):
        return fast, False
    host = parts.within(island, HOST)
    middle = parts.middle_of(island)
    pairs = _pairs_apart(parts, forwards, gpus, middle)
    slow = on_shortest_paths(host, pairs, middle)
    return fast + slow, bool(slow)


def _pairs_apart(parts: Parts, forwards: Adjacency, gpus: Sequence[str], middle: Set[str]) -> list[tuple[str, str]]:
    """Returns the pairs of GPUs where the first does not reach the second if paths lead only through `middle`."""
    all_gpus, count = frozenset(gpus), 0
    for a in gpus:
        count += len(all_gpus - reachable(forwards, a, middle))
        check_entries(count, "pairs of GPUs that fast links do not join", parts.topology.name, _FEWER)
    unreachable = {a: all_gpus - reachable(forwards, a, middle) for a in gpus}
    return [(a, b) for a in gpus for b in gpus if b in unreachable[a]]


def _between(parts: Parts, bare: Mapping[str, bool]) -> list[Link]:
    """Returns the network links and, for each island, the paths between its GPUs and NICs.

    Every GPU gets paths to its nearest NICs, and every NIC gets paths from its nearest GPUs. The same holds for paths
    from NICs to GPUs. In a `bare` island, GPUs use no PCIe among themselves. There a switch, CPU or NIC that several
    GPUs share is split into an outgoing and an incoming vertex, so that no path leads from a GPU over PCIe to another
    GPU of the island. If some link is on both outgoing and incoming paths, nothing is split.

    Args:
        bare: island -> True if its GPUs use no PCIe among themselves.
    """
    net = [link for link in parts.links if link.kind in NET]
    wired = {end for link in net for end in (link.src, link.dst)}
    picked = []
    rename: dict[tuple[str, str], str] = {}
    for island in parts.islands:
        members = parts.members[island]
        nics = {n for n in members if n in wired and parts.kind[n] is VertexKind.NIC}
        ends = {n for n in members if n in parts.ends}
        host = [link for link in parts.links_of(island) if link.kind in HOST]
        middle = parts.middle_of(island)
        check_entries(len(ends) * (len(middle) + len(nics)), "pairs of GPUs and NICs", parts.topology.name, _FEWER)
        out, come = to_nearest(host, ends, nics, middle), from_nearest(host, ends, nics, middle)
        shared = {(k.src, k.dst, k.kind) for k in out} & {(k.src, k.dst, k.kind) for k in come}
        if bare[island] and not shared:
            split = _shared_by_gpus([*out, *come], ends)
            rename |= {("out", n): f"{n}+out" for n in split} | {("in", n): f"{n}+in" for n in split}
        picked += [renamed(link, rename, "out") for link in out] + [renamed(link, rename, "in") for link in come]
    return picked + [renamed_net(link, rename) for link in net]


def to_nearest(host: Sequence[Link], ends: Set[str], goals: Set[str], middle: Set[str]) -> list[Link]:
    """Returns the links on shortest paths from GPUs to CPUs or NICs, in the order of `host`.

    `_nearest_pairs` selects the pairs.

    Args:
        ends: GPUs.
        goals: CPUs or NICs.
        middle: the vertices that paths may pass through.
    """
    return on_shortest_paths(host, _nearest_pairs(host, ends, goals, middle), middle)


def from_nearest(host: Sequence[Link], ends: Set[str], goals: Set[str], middle: Set[str]) -> list[Link]:
    """Returns the links on shortest paths from CPUs or NICs to GPUs; like `to_nearest`, with all links reversed."""
    return turned(to_nearest(turned(host), ends, goals, middle))


def _nearest_pairs(links: Sequence[Link], ends: Set[str], nics: Set[str], middle: Set[str]) -> list[tuple[str, str]]:
    """Returns each (GPU, NIC) where the NIC is among the GPU's nearest, or the GPU among the NIC's, in hops."""
    forwards = Adjacency(links)
    hops = {end: forwards.hops(end, middle) for end in sorted(ends)}
    to_nic = {end: {n: h for n, h in hops[end].items() if n in nics} for end in hops}
    nic_hops: dict[str, int] = {}
    for nic_distances in to_nic.values():
        for nic, h in nic_distances.items():
            nic_hops[nic] = min(h, nic_hops.get(nic, h))
    pairs = []
    for end, nic_distances in to_nic.items():
        best = min(nic_distances.values(), default=0)
        pairs += [(end, nic) for nic, h in sorted(nic_distances.items()) if h in (best, nic_hops[nic])]
    return pairs


def _shared_by_gpus(links: Sequence[Link], ends: Set[str]) -> set[str]:
    """Returns the vertices that could join two GPUs: the connected pieces without GPUs that touch at least two GPUs."""
    neighbors: dict[str, set[str]] = defaultdict(set)
    for link in links:
        neighbors[link.src].add(link.dst)
        neighbors[link.dst].add(link.src)
    shared: set[str] = set()
    visited: set[str] = set()
    for start in sorted(set(neighbors) - ends):
        if start in visited:
            continue
        piece, gpus, todo = {start}, set(), [start]
        while todo:
            for other in neighbors[todo.pop()]:
                if other in ends:
                    gpus.add(other)
                elif other not in piece:
                    piece.add(other)
                    todo.append(other)
        visited |= piece
        if len(gpus) > 1:
            shared |= piece
    return shared


def renamed(link: Link, rename: Mapping[tuple[str, str], str], way: str) -> Link:
    """Returns the link between the vertices that its ends are split into; `way` is ``out`` or ``in``."""
    src, dst = rename.get((way, link.src), link.src), rename.get((way, link.dst), link.dst)
    return Link(src, dst, link.kind, link.gbps, link.latency_us)


def renamed_net(link: Link, rename: Mapping[tuple[str, str], str]) -> Link:
    """Returns a network link that starts at the outgoing vertex of a split NIC and ends at the incoming one."""
    src, dst = rename.get(("out", link.src), link.src), rename.get(("in", link.dst), link.dst)
    return Link(src, dst, link.kind, link.gbps, link.latency_us)


def lost_gpu(chosen: Sequence[str], links: Sequence[Link]) -> str | None:
    """Returns a GPU that the first GPU does not reach even if links may be used in both directions, or None."""
    both = Adjacency([*links, *turned(links)])
    component = reachable(both, chosen[0], set(both))
    return next((name for name in chosen[1:] if name not in component), None)


def _way_out(topology: Topology, chosen: Sequence[str], override: str | None, relay: bool, may_relay: bool) -> str:
    """Returns a hint with the options that connect these GPUs; it tries each option."""
    ways = []
    for option, links, with_relay in (
        ("--relay idle", override, True),
        ("no --links", None, relay),
        ("--links all", "all", relay),
    ):
        if (links, with_relay) == (override, relay) or (with_relay and not may_relay):
            continue
        parts = Parts(topology, chosen, with_relay)
        picked = _override(parts, links) if links is not None else _by_rules(parts)
        if lost_gpu(chosen, useful_links(picked, chosen)) is None:
            ways.append(option)
    return f"try {' or '.join(ways)}" if ways else "no links of this topology join them; choose other GPUs"


def assemble(topology: Topology, parts: Parts, chosen: Sequence[str], links: Sequence[Link]) -> PlanGraph:
    """Returns the graph: ranks in their order, then forwarding vertices in the order of the topology."""
    origin = {name: name for name in parts.kind}
    for link in links:
        for end in (link.src, link.dst):
            origin.setdefault(end, end.rpartition("+")[0])
    used = {end for link in links for end in (link.src, link.dst)} - set(chosen)
    place = {v.name: i for i, v in enumerate(topology.vertices)}
    names = [*chosen, *sorted(used, key=lambda name: (place[origin[name]], name))]
    number = {name: i for i, name in enumerate(names)}
    by_name = {v.name: v for v in topology.vertices}
    vertices = []
    for name in names:
        vertex = by_name[origin[name]]
        vertices.append(replace(vertex, name=name))
    at = {(link.src, link.dst, link.kind): i for i, link in enumerate(topology.links)}
    # Links that the topology does not have come last: the memory between the two sides of a CPU.
    order = sorted(
        links, key=lambda k: (at.get((origin[k.src], origin[k.dst], k.kind), len(at)), number[k.src], number[k.dst])
    )
    graph_links = tuple(
        GraphLink(i, number[k.src], number[k.dst], k.kind, k.gbps, k.latency_us) for i, k in enumerate(order)
    )
    servers = tuple(parts.server.get(origin[name], "") for name in names)
    assumes = tuple(kind for kind in topology.assumes if any(link.kind is kind for link in graph_links))
    return PlanGraph(topology.name, len(chosen), tuple(vertices), servers, graph_links, topology.gpu_model, assumes)
