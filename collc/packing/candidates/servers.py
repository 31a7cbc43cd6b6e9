"""Candidates for several servers: trees of each server, joined by few hops between servers.

Packed trees fill the links; these candidates cross the network only a few times in a row. For each part of a block
every server has a tree over its own GPUs, and the roots of these trees exchange data with the root of one server,
directly (three phases) or along a ring of servers.

Sources: three phases: Blink (Wang et al., MLSys 2020), section 3.5. Rings inside servers and one ring between them:
the hierarchical all-reduce of Horovod and BytePS (Sergeev and Del Balso 2018; Jiang et al., OSDI 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.packing.candidates.paths import Edge, Paths, along_ring, phases, shortest_paths
from collc.packing.candidates.ring_search import disjoint_rings
from collc.packing.model import Hop, Tree
from collc.packing.solve import plan as packed_plan
from collc.topology.model import GraphLink, PlanGraph, VertexKind

# Above this number of ranks there is no candidate, because its trees take seconds to lower.
MOST_RANKS = 64


@dataclass(frozen=True)
class _Server:
    """The graph of one server. Its rank i is rank `ranks[i]` of the whole graph, its link i is link `links[i]`."""

    name: str
    graph: PlanGraph
    ranks: tuple[int, ...]
    links: tuple[int, ...]

    def moved(self, tree: Tree) -> Tree:
        """Returns a tree of the server with the ranks and links of the whole graph."""

        def hops(own: Iterable[Hop]) -> tuple[Hop, ...]:
            return tuple(
                Hop(self.ranks[hop.src], self.ranks[hop.dst], tuple(self.links[i] for i in hop.links)) for hop in own
            )

        return Tree(self.ranks[tree.root], tree.weight, hops(tree.reduce), hops(tree.broadcast))


# A target of data: the server of the root, the root of the tree in each server (its rank there; None: any), and the
# target's fraction of the weight.
_Target = tuple[int, tuple["int | None", ...], Fraction]
# Returns the trees of a server that start at a rank of it (None: any).
_Local = Callable[[int, "int | None"], Sequence[Tree]]


def three_phases(graph: PlanGraph, paths: Paths, collective: Collective, root: int | None) -> tuple[Tree, ...]:
    """Returns packed trees inside every server with one hop between their roots.

    The phases are: reduce inside each server, exchange between servers, broadcast inside each server.

    Raises:
        PackingError: all ranks are on one server, links inside some server do not join its ranks, or there are too many
            ranks.
    """
    servers = _servers(graph)
    trees_by_server: dict[object, tuple[Tree, ...]] = {}

    def local(server: int, start: int | None) -> Sequence[Tree]:
        own = servers[server].graph
        at = start if collective.rooted else None
        # Equal servers share one packing.
        key = (own.nranks, len(own.vertices), own.links, at)
        if key not in trees_by_server:
            trees_by_server[key] = _packed(servers[server], collective, at)
        return [tree for tree in trees_by_server[key] if start is None or tree.root == start]

    if collective.both_phases:
        anywhere = (None,) * len(servers)
        targets: list[_Target] = [(home, anywhere, Fraction(1)) for home in range(len(servers))]
    else:
        targets = _targets(servers, collective, root)
    return _composed(servers, targets, _star, paths, collective, local)


def hierarchical_rings(graph: PlanGraph, paths: Paths, collective: Collective, root: int | None) -> tuple[Tree, ...]:
    """Returns trees along rings. For each root there is a ring of servers, through the rank of equal index in each.

    Data moves along the rings inside every server to that rank, along the ring of servers, and back.

    Raises:
        PackingError: all ranks are on one server, no ring closes inside some server, or there are too many ranks.
    """
    servers = _servers(graph)
    orders_by_server: dict[int, tuple[list[tuple[int, ...]], Paths]] = {}

    def local(server: int, start: int | None) -> Sequence[Tree]:
        own = servers[server].graph
        if server not in orders_by_server:
            inside = shortest_paths(own)
            orders_by_server[server] = ([(0,)] if own.nranks == 1 else disjoint_rings(own, inside), inside)
        orders, inside = orders_by_server[server]
        trees = []
        for order in orders:
            at = order.index(start or 0)
            way = [*order[at:], *order[:at]]
            trees.append(Tree(way[0], Fraction(1), *phases(inside, collective, *along_ring(way))))
        return trees

    return _composed(servers, _targets(servers, collective, root), along_ring, paths, collective, local)


def _targets(servers: Sequence[_Server], collective: Collective, root: int | None) -> list[_Target]:
    """Returns a target for every rank, or for the root. Trees of other servers start at the rank of equal index there.

    The index is taken modulo the number of ranks of the other server. In an all_reduce, the targets of each server get
    equal weight in total. There, the hops of the ring of servers that do not touch the root's server carry a part
    twice, the others once.
    """
    found: list[_Target] = []
    for home, server in enumerate(servers):
        for index, rank in enumerate(server.ranks):
            if root in (None, rank):
                others = tuple(index if s == home else index % len(o.ranks) for s, o in enumerate(servers))
                found.append((home, others, Fraction(1, len(server.ranks) if collective.both_phases else 1)))
    return found


def _servers(graph: PlanGraph) -> list[_Server]:
    names = list(dict.fromkeys(graph.rank_servers))
    if len(names) < 2:
        raise PackingError("these GPUs are on one server")
    if graph.nranks > MOST_RANKS:
        raise PackingError(f"plans by servers are made for at most {MOST_RANKS} GPUs")
    return [_server(graph, name) for name in names]


def _server(graph: PlanGraph, name: str) -> _Server:
    """Returns the graph of a server, without its NICs, because their links only carry data that leaves the server."""
    inside = [
        v for v, vertex in enumerate(graph.vertices) if graph.servers[v] == name and vertex.kind is not VertexKind.NIC
    ]
    number = {v: i for i, v in enumerate(inside)}
    links = [link for link in graph.links if link.src in number and link.dst in number]
    own = tuple(GraphLink(i, number[k.src], number[k.dst], k.kind, k.gbps, k.latency_us) for i, k in enumerate(links))
    ranks = tuple(v for v in inside if v < graph.nranks)
    vertices = tuple(graph.vertices[v] for v in inside)
    plain = PlanGraph(name, len(ranks), vertices, ("server0",) * len(inside), own, graph.gpu_model)
    return _Server(name, plain, ranks, tuple(link.id for link in links))


def _packed(server: _Server, collective: Collective, root: int | None) -> tuple[Tree, ...]:
    if server.graph.nranks == 1:
        return (Tree(0, Fraction(1)),)
    try:
        return packed_plan(server.graph, collective, root).trees
    except PackingError as error:
        raise PackingError(f"the GPUs of server {server.name} have no plan of their own: {error.what}") from None


def _composed(
    servers: Sequence[_Server],
    targets: Sequence[_Target],
    between: Callable[[Sequence[int]], tuple[list[Edge], list[Edge]]],
    paths: Paths,
    collective: Collective,
    local: _Local,
) -> tuple[Tree, ...]:
    """Returns for each target the joined trees of all servers.

    The trees of each server divide the block by their weights. The block is cut wherever any server changes its tree,
    and each piece gets one tree: one tree of every server, joined by hops between their roots.

    Args:
        between: returns for server numbers, the target's first, the edges (child, parent) of the reduce phase and
            (parent, child) of the broadcast phase.
        local: returns the trees of a server.
    """
    composed = []
    count = len(servers)
    for home, starts, part in targets:
        up, down = between([(home + i) % count for i in range(count)])
        own = [[servers[s].moved(tree) for tree in local(s, start)] for s, start in enumerate(starts)]
        for weight, chosen in _overlaid(own):
            roots = [tree.root for tree in chosen]
            to_root, from_root = ([(roots[a], roots[b]) for a, b in edges] for edges in (up, down))
            net_up, net_down = phases(paths, collective, to_root, from_root)
            reduce = (*(hop for tree in chosen for hop in tree.reduce), *net_up)
            broadcast = (*net_down, *(hop for tree in chosen for hop in tree.broadcast))
            composed.append(Tree(roots[home], part * weight, reduce, broadcast))
    return tuple(composed)


def _overlaid(locals_: Sequence[Sequence[Tree]]) -> list[tuple[Fraction, list[Tree]]]:
    """Returns the pieces of a block: fractions that add up to 1, each with one tree of every server."""
    left = []
    for trees in locals_:
        total = sum((tree.weight for tree in trees), Fraction(0))
        left.append([replace(tree, weight=tree.weight / total) for tree in reversed(trees)])
    found = []
    while left[0]:
        width = min(trees[-1].weight for trees in left)
        found.append((width, [trees[-1] for trees in left]))
        for trees in left:
            tree = trees.pop()
            if tree.weight > width:
                trees.append(replace(tree, weight=tree.weight - width))
    return found


def _star(order: Sequence[int]) -> tuple[list[Edge], list[Edge]]:
    first, *others = order
    return [(other, first) for other in others], [(first, other) for other in others]
