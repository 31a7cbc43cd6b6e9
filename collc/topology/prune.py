"""Removes links that no path from one rank to another can use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from collc.topology.graphs import igraph
from collc.topology.model import Link


def useful_links(links: Sequence[Link], ranks: Sequence[str]) -> list[Link]:
    """Returns the links on a path from a rank to another rank that passes through no third rank, in their order.

    Two filters alternate until neither removes a link. The first regards directions: a rank leads to the link and the
    link leads to another rank. The second removes dead ends: without directions, the link is on a simple path (see
    `_on_simple_path`).
    """
    rest = list(links)
    while True:
        once = _on_simple_path(_directed(rest, set(ranks)), ranks)
        if len(once) == len(rest):
            return once
        rest = once


def _directed(links: Sequence[Link], ranks: set[str]) -> list[Link]:
    """Returns the links that lead from a rank to another rank."""
    sources = _two_ranks(links, ranks, lambda k: k.src, lambda k: k.dst)
    goals = _two_ranks(links, ranks, lambda k: k.dst, lambda k: k.src)
    return [k for k in links if sources[k.src] and goals[k.dst] and len(sources[k.src] | goals[k.dst]) > 1]


def _two_ranks(
    links: Sequence[Link], ranks: set[str], src: Callable[[Link], str], dst: Callable[[Link], str]
) -> dict[str, set[str]]:
    """Returns for each vertex up to two ranks that reach it through forwarding vertices; for a rank, only itself.

    Two are enough, because one of them differs from any other rank.
    """
    out: dict[str, list[str]] = defaultdict(list)
    for link in links:
        out[src(link)].append(dst(link))
    sources: dict[str, set[str]] = defaultdict(set)
    for rank in sorted(ranks):
        todo = [rank]
        visited = {rank}
        while todo:
            for other in out.get(todo.pop(), ()):
                if other in ranks or other in visited or len(sources[other]) > 1:
                    continue
                visited.add(other)
                sources[other].add(rank)
                todo.append(other)
    for rank in ranks:
        sources[rank] = {rank}
    return sources


def _on_simple_path(links: Sequence[Link], ranks: Sequence[str]) -> list[Link]:
    """Returns the links that, without their direction, are on a simple path between two ranks.

    An extra vertex is joined to all ranks. The links on simple paths are then exactly the links in a biconnected
    component with the extra vertex: any two edges of such a component are on a common cycle, and the ranks cut a cycle
    through the extra vertex into paths from rank to rank.
    """
    names = list(dict.fromkeys([*ranks, *(end for k in links for end in (k.src, k.dst))]))
    number = {name: i for i, name in enumerate(names)}
    extra = len(names)
    pairs = sorted({tuple(sorted((number[k.src], number[k.dst]))) for k in links})
    graph = igraph.Graph(n=extra + 1, edges=[*pairs, *((number[rank], extra) for rank in ranks)])
    useful: set[tuple[int, int]] = set()
    for block in graph.biconnected_components():
        members = set(block)
        if extra in members:
            useful |= {(a, b) for a in members for b in _neighbors(graph, a) if b in members}
    return [k for k in links if (number[k.src], number[k.dst]) in useful]


def _neighbors(graph: igraph.Graph, vertex: int) -> list[int]:
    return list(graph.neighbors(vertex))
