"""`Topology` and an allocation -> `PlanGraph`: exactly the links that a plan uses. docs/topology.md has the rules.

Inside a server (or several that NVLink joins) the fast class alone is used if it strongly connects the chosen GPUs;
else every pair that it does not join directly gets its PCIe path too. Between servers, network links and the paths from
GPUs to NICs are added; those paths carry only traffic between servers.
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
    """The graph of a plan for some GPUs of a topology.

    Args:
        gpus: names in rank order; all GPUs in the order of the topology if None.
        links: ``nvlink,pcie`` uses exactly the links of these kinds, ``all`` every link; None follows the rules.
        relay: idle GPUs of the servers may forward (they hold no data of the collective).
        may_relay: whether the caller's user could choose that instead.

    Raises:
        UsageError: a GPU or a kind of link does not exist.
        TopologyError: the links fall apart: some GPUs have no connection to others.
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
    """The names of an allocation in rank order; all GPUs if None. Raises UsageError for GPUs that do not exist."""
    known = [v.name for v in topology.gpus]
    chosen = known if gpus is None else list(gpus)
    if not chosen:
        raise UsageError("no GPU is chosen", where=topology.name, hint="name at least one with --gpus")
    there, before = frozenset(known), set[str]()
    for name in chosen:
        if name not in there:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"it has {len(known)}, the first is `{known[0]}`"
            raise UsageError(f"no GPU is called `{name}`", where=topology.name, hint=hint)
        if name in before:
            raise UsageError(f"GPU {name} is listed twice", where=topology.name, hint="each GPU is one rank")
        before.add(name)
    return chosen


class Parts:
    """A topology seen from an allocation: servers grouped into islands, and the vertices that may forward.

    An island is a set of servers that fast links join (the trays of an NVL72 rack); usually it is one server. Vertices
    of servers without a chosen GPU take no part.
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
        # By island, for thousands of servers: the links inside, and who takes part.
        self._inside: dict[str, list[Link]] = defaultdict(list)
        for link in self.links:
            if self.island[link.src] == self.island[link.dst]:
                self._inside[self.island[link.src]].append(link)
        self.members: dict[str, list[str]] = defaultdict(list)
        for name in self.kind:
            if name in self.alive:
                self.members[self.island[name]].append(name)

    def _islands(self, links: Iterable[Link]) -> dict[str, str]:
        """Vertex -> a name of its island: the first of the servers, or lone vertices, that fast links join."""
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
        """All links inside the island."""
        return self._inside.get(island, [])

    def middle_of(self, island: str) -> set[str]:
        """The island's switches and CPUs, through which its paths lead."""
        members = self.members.get(island, [])
        return {name for name in members if self.kind[name] in (VertexKind.SWITCH, VertexKind.CPU)}

    def within(self, island: str, kinds: Set[LinkKind]) -> list[Link]:
        """The island's links of some kinds, NICs aside."""
        return [
            link
            for link in self.links_of(island)
            if link.kind in kinds and VertexKind.NIC not in (self.kind[link.src], self.kind[link.dst])
        ]


def _override(parts: Parts, text: str) -> list[Link]:
    known = [kind.value for kind in LinkKind]
    wanted = [word.strip() for word in text.split(",")]
    if wanted == ["all"]:
        return parts.links
    for word in wanted:
        if word not in known:
            near = difflib.get_close_matches(word, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "kinds: " + ", ".join([*known, "all"])
            raise UsageError(f"no kind of link is called `{word}`", where=f"--links {text}", hint=hint)
    return [link for link in parts.links if link.kind.value in wanted]


def _by_rules(parts: Parts) -> list[Link]:
    picked: list[Link] = []
    bare = {}
    for island, gpus in parts.islands.items():
        inside, uses_host = _inside(parts, island, gpus)
        picked += inside
        bare[island] = not uses_host
    if len(parts.islands) > 1:
        picked += _between(parts, bare)
    # A PCIe link may serve both inside and between.
    return list({(link.src, link.dst, link.kind): link for link in picked}.values())


def _inside(parts: Parts, island: str, gpus: Sequence[str]) -> tuple[list[Link], bool]:
    """The links that one island's GPUs use among themselves, and whether PCIe is among them."""
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
    """The pairs of GPUs of which the first does not reach the second through vertices of `middle` alone."""
    everyone, count = frozenset(gpus), 0
    for a in gpus:
        count += len(everyone - reachable(forwards, a, middle))
        check_entries(count, "pairs of GPUs that fast links do not join", parts.topology.name, _FEWER)
    apart = {a: everyone - reachable(forwards, a, middle) for a in gpus}
    return [(a, b) for a in gpus for b in gpus if b in apart[a]]


def _between(parts: Parts, bare: Mapping[str, bool]) -> list[Link]:
    """Network links and, per island, the paths between its GPUs and NICs.

    Every GPU reaches its nearest NICs, and every NIC is reached from its nearest GPUs. `bare` islands use no PCIe
    inside: there a switch, CPU or NIC that several GPUs share is split into an outgoing and an incoming vertex, so that
    no path leads from a GPU over PCIe to another GPU of the same island.
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
    """The links on the ways from GPUs (`ends`) to what is nearest of some CPUs or NICs, in their order."""
    return on_shortest_paths(host, _nearest_pairs(host, ends, goals, middle), middle)


def from_nearest(host: Sequence[Link], ends: Set[str], goals: Set[str], middle: Set[str]) -> list[Link]:
    """The links on the ways back, in their order."""
    return turned(to_nearest(turned(host), ends, goals, middle))


def _nearest_pairs(links: Sequence[Link], ends: Set[str], nics: Set[str], middle: Set[str]) -> list[tuple[str, str]]:
    """(GPU, NIC) where the NIC is one of the GPU's nearest or the GPU one of the NIC's, counted in hops of `links`."""
    forwards = Adjacency(links)
    hops = {end: forwards.hops(end, middle) for end in sorted(ends)}
    to_nic = {end: {n: h for n, h in hops[end].items() if n in nics} for end in hops}
    least: dict[str, int] = {}
    for found in to_nic.values():
        for nic, h in found.items():
            least[nic] = min(h, least.get(nic, h))
    pairs = []
    for end, found in to_nic.items():
        best = min(found.values(), default=0)
        pairs += [(end, nic) for nic, h in sorted(found.items()) if h in (best, least[nic])]
    return pairs


def _shared_by_gpus(links: Sequence[Link], ends: Set[str]) -> set[str]:
    """Vertices over which one GPU could reach another: the pieces between the GPUs that touch at least two of them."""
    neighbours: dict[str, set[str]] = defaultdict(set)
    for link in links:
        neighbours[link.src].add(link.dst)
        neighbours[link.dst].add(link.src)
    shared: set[str] = set()
    seen: set[str] = set()
    for start in sorted(set(neighbours) - ends):
        if start in seen:
            continue
        piece, touched, todo = {start}, set(), [start]
        while todo:
            for other in neighbours[todo.pop()]:
                if other in ends:
                    touched.add(other)
                elif other not in piece:
                    piece.add(other)
                    todo.append(other)
        seen |= piece
        if len(touched) > 1:
            shared |= piece
    return shared


def renamed(link: Link, rename: Mapping[tuple[str, str], str], way: str) -> Link:
    """The link between the vertices that its ends were split into; `way` is ``out`` or ``in``."""
    src, dst = rename.get((way, link.src), link.src), rename.get((way, link.dst), link.dst)
    return Link(src, dst, link.kind, link.gbps, link.latency_us)


def renamed_net(link: Link, rename: Mapping[tuple[str, str], str]) -> Link:
    """Links from a split NIC start at its outgoing vertex; links to it end at its incoming one."""
    src, dst = rename.get(("out", link.src), link.src), rename.get(("in", link.dst), link.dst)
    return Link(src, dst, link.kind, link.gbps, link.latency_us)


def lost_gpu(chosen: Sequence[str], links: Sequence[Link]) -> str | None:
    """A GPU that the first one does not reach, whatever the direction of links."""
    both = Adjacency([*links, *turned(links)])
    found = reachable(both, chosen[0], set(both))
    return next((name for name in chosen[1:] if name not in found), None)


def _way_out(topology: Topology, chosen: Sequence[str], override: str | None, relay: bool, may_relay: bool) -> str:
    """Options with which these GPUs do reach each other, each tried."""
    ways = []
    for said, links, more in (
        ("--relay idle", override, True),
        ("no --links", None, relay),
        ("--links all", "all", relay),
    ):
        if (links, more) == (override, relay) or (more and not may_relay):
            continue
        parts = Parts(topology, chosen, more)
        picked = _override(parts, links) if links is not None else _by_rules(parts)
        if lost_gpu(chosen, useful_links(picked, chosen)) is None:
            ways.append(said)
    return f"try {' or '.join(ways)}" if ways else "no links of this topology join them; choose other GPUs"


def assemble(topology: Topology, parts: Parts, chosen: Sequence[str], links: Sequence[Link]) -> PlanGraph:
    """Numbers the vertices: ranks in order, then what forwards, in the order of the topology."""
    origin = {name: name for name in parts.kind}
    for link in links:
        for end in (link.src, link.dst):
            origin.setdefault(end, end.rpartition("+")[0])
    used = {end for link in links for end in (link.src, link.dst)} - set(chosen)
    place = {v.name: i for i, v in enumerate(topology.vertices)}
    names = [*chosen, *sorted(used, key=lambda name: (place[origin[name]], name))]
    number = {name: i for i, name in enumerate(names)}
    known = {v.name: v for v in topology.vertices}
    vertices = []
    for name in names:
        vertex = known[origin[name]]
        vertices.append(replace(vertex, name=name))
    at = {(link.src, link.dst, link.kind): i for i, link in enumerate(topology.links)}
    # What is no link of the topology comes last: the memory between the two sides of a CPU.
    order = sorted(
        links, key=lambda k: (at.get((origin[k.src], origin[k.dst], k.kind), len(at)), number[k.src], number[k.dst])
    )
    graph_links = tuple(
        GraphLink(i, number[k.src], number[k.dst], k.kind, k.gbps, k.latency_us) for i, k in enumerate(order)
    )
    servers = tuple(parts.server.get(origin[name], "") for name in names)
    return PlanGraph(topology.name, len(chosen), tuple(vertices), servers, graph_links, topology.gpu_model)
