"""Maximum flows and minimum cuts in exact integers."""

from __future__ import annotations

from collections.abc import Sequence

from collc.topology.graphs import igraph

# igraph computes flows in doubles, which represent every integer up to this one.
_LARGEST_EXACT_INTEGER = 1 << 53


class FlowNetwork:
    """Directed arcs. Their capacities are arguments of each call.

    Args:
        nverts: the number of vertices.
        arcs: (tail, head) of each arc. Two arcs may join the same vertices.
    """

    def __init__(self, nverts: int, arcs: Sequence[tuple[int, int]]) -> None:
        self._nverts, self._arcs = nverts, arcs
        # Both libraries return the minimum cut with the largest source side. With all arcs reversed, its complement is
        # the smallest source side.
        self._turned = igraph.Graph(nverts, [(head, tail) for tail, head in arcs], directed=True)

    def maximum_flow(self, capacities: Sequence[int], source: int, sink: int) -> int:
        """Returns the value of a maximum flow."""
        if sum(capacities) > _LARGEST_EXACT_INTEGER:
            return self._large(capacities, source, sink)[0]
        return int(self._turned.maxflow_value(sink, source, capacities))

    def source_side(self, capacities: Sequence[int], source: int, sink: int) -> set[int]:
        """Returns the side of the smallest minimum cut that contains the source."""
        if sum(capacities) > _LARGEST_EXACT_INTEGER:
            return self._large(capacities, source, sink)[1]
        return set(self._turned.maxflow(sink, source, capacities).partition[1])

    def _large(self, capacities: Sequence[int], source: int, sink: int) -> tuple[int, set[int]]:
        """Returns the flow and the side, computed by networkx in Python's integers. It takes 10 to 20 times as long."""
        import networkx

        turned: networkx.DiGraph[int] = networkx.DiGraph()
        turned.add_nodes_from(range(self._nverts))
        for (tail, head), capacity in zip(self._arcs, capacities, strict=True):
            before = turned.edges[head, tail]["capacity"] if turned.has_edge(head, tail) else 0
            turned.add_edge(head, tail, capacity=before + capacity)
        value, (_, side) = networkx.minimum_cut(turned, sink, source)
        return int(value), set(side)
