"""Determines the data of a plan that pass through host memory: between GPUs without peer access (transport `host`)."""

from __future__ import annotations

from collections.abc import Sequence

from collc.topology.model import PlanGraph, VertexKind


def staged_pairs(graph: PlanGraph) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of ranks, lower rank first, whose data must all pass a CPU's memory (`memory_gbps`).

    The CUDA runtime gives these pairs slots in pinned host memory, unless the driver has peer access between them.
    """
    successors: dict[int, list[int]] = {}
    for link in graph.links:
        successors.setdefault(link.src, []).append(link.dst)

    def reach(rank: int, staged: bool) -> set[int]:
        """Returns the vertices that a rank's data reach without passing a GPU, nor a CPU's memory unless `staged`."""
        visited, todo = {rank}, [rank]
        while todo:
            next_vertices = [v for v in successors.get(todo.pop(), ()) if v not in visited]
            visited.update(next_vertices)
            todo += [v for v in next_vertices if graph.vertices[v].kind is not VertexKind.GPU]
            if not staged:
                todo = [v for v in todo if graph.vertices[v].memory_gbps is None]
        return visited

    if all(vertex.memory_gbps is None for vertex in graph.vertices):
        return ()
    pairs = []
    for a in range(graph.nranks):
        pairs += [(a, b) for b in sorted(reach(a, True) - reach(a, False)) if a < b < graph.nranks]
    return tuple(pairs)


def staged_in(graph: PlanGraph, links: Sequence[int]) -> int | None:
    """Returns the vertex whose memory stages the data of a path: the first with `memory_gbps`, or None.

    Args:
        links: ids of the path's links, in order.
    """
    vertices = (graph.links[link].dst for link in links)
    return next((v for v in vertices if graph.vertices[v].memory_gbps is not None), None)
