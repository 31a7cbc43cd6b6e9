"""Which data of a plan pass through host memory: between GPUs that do not reach each other (transport `host`)."""

from __future__ import annotations

from collections.abc import Sequence

from collc.topology.model import PlanGraph, VertexKind


def staged_pairs(graph: PlanGraph) -> tuple[tuple[int, int], ...]:
    """Pairs of ranks, the lower one first, between which all data are staged in a CPU's memory (`memory_gbps`).

    The CUDA runtime gives them slots in pinned host memory, unless their driver has peer access after all.
    """
    ahead: dict[int, list[int]] = {}
    for link in graph.links:
        ahead.setdefault(link.src, []).append(link.dst)

    def reached(rank: int, staged: bool) -> set[int]:
        """What a rank's data reach without passing another GPU, nor, unless `staged`, a CPU's memory."""
        found, new = {rank}, [rank]
        while new:
            more = [v for v in ahead.get(new.pop(), ()) if v not in found]
            found.update(more)
            new += [v for v in more if graph.vertices[v].kind is not VertexKind.GPU]
            if not staged:
                new = [v for v in new if graph.vertices[v].memory_gbps is None]
        return found

    if all(vertex.memory_gbps is None for vertex in graph.vertices):
        return ()
    pairs = []
    for a in range(graph.nranks):
        pairs += [(a, b) for b in sorted(reached(a, True) - reached(a, False)) if a < b < graph.nranks]
    return tuple(pairs)


def staged_in(graph: PlanGraph, links: Sequence[int]) -> int | None:
    """The vertex in whose memory data on this path are staged: the first on the way that has `memory_gbps`."""
    passed = (graph.links[link].dst for link in links)
    return next((v for v in passed if graph.vertices[v].memory_gbps is not None), None)
