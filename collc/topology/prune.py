"""Drops links that no path from one rank to another can use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from collc.topology.graphs import igraph
from collc.topology.model import Link


def useful_links(links: Sequence[Link], ranks: Sequence[str]) -> list[Link]:
    """The links on some path from a rank to another rank that passes through no third rank; order is kept.

    Two filters alternate until neither drops anything: by direction (some rank leads to the link and the link leads to
    some other rank) and by dead ends (without directions, the link is on a simple path; see `_on_simple_path`).
    """
    kept = list(links)
    while True:
        once = _on_simple_path(_directed(kept, set(ranks)), ranks)
        if len(once) == len(kept):
            return once
        kept = once


def _directed(links: Sequence[Link], ranks: set[str]) -> list[Link]:
    """Links that lead from some rank to some other rank."""
    before = _two_ranks(links, ranks, lambda k: k.src, lambda k: k.dst)
    after = _two_ranks(links, ranks, lambda k: k.dst, lambda k: k.src)
    return [k for k in links if before[k.src] and after[k.dst] and len(before[k.src] | after[k.dst]) > 1]


def _two_ranks(
    links: Sequence[Link], ranks: set[str], src: Callable[[Link], str], dst: Callable[[Link], str]
) -> dict[str, set[str]]:
    """For each vertex up to two ranks that reach it through forwarding vertices; two are enough to know one differs."""
    out: dict[str, list[str]] = defaultdict(list)
    for link in links:
        out[src(link)].append(dst(link))
    found: dict[str, set[str]] = defaultdict(set)
    for rank in sorted(ranks):
        todo = [rank]
        seen = {rank}
        while todo:
            for other in out.get(todo.pop(), ()):
                if other in ranks or other in seen or len(found[other]) > 1:
                    continue
                seen.add(other)
                found[other].add(rank)
                todo.append(other)
    for rank in ranks:
        found[rank] = {rank}
    return found


def _on_simple_path(links: Sequence[Link], ranks: Sequence[str]) -> list[Link]:
    """Links that, taken without direction, are on a simple path between two ranks.

    With one more vertex joined to all ranks these are exactly the links in a biconnected component with that vertex:
    two edges of such a component share a cycle, and where a cycle through the extra vertex meets ranks it falls into
    rank-to-rank paths.
    """
    names = list(dict.fromkeys([*ranks, *(end for k in links for end in (k.src, k.dst))]))
    number = {name: i for i, name in enumerate(names)}
    extra = len(names)
    pairs = sorted({tuple(sorted((number[k.src], number[k.dst]))) for k in links})
    graph = igraph.Graph(n=extra + 1, edges=[*pairs, *((number[rank], extra) for rank in ranks)])
    good: set[tuple[int, int]] = set()
    for block in graph.biconnected_components():
        members = set(block)
        if extra in members:
            good |= {(a, b) for a in members for b in _neighbours(graph, a) if b in members}
    return [k for k in links if (number[k.src], number[k.dst]) in good]


def _neighbours(graph: igraph.Graph, vertex: int) -> list[int]:
    return list(graph.neighbors(vertex))
