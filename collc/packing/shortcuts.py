"""Rings whose last hop goes straight from the root, where that unloads a link that is full.

Along a ring a root's data make N - 1 hops, and the last rank that they come to is the one before the root. Where the
root has a link to it with room, such as between two dies of a package, and the ring's own last hop crosses a full one,
this rank gets the data from its root in one hop. On eight MI250, where six links join each pair of dies to the others,
six rings move 14/16 of the data over each of them instead of 15/16: as much as any plan can. Partial sums go the same
way round: the rank behind the root hands its own straight to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from collc.packing.paths import Edge, Paths, along_ring
from collc.topology.model import PlanGraph

Order = Sequence[int]


class Shortcuts:
    """The edges of each root's trees along a graph's rings."""

    def __init__(self, graph: PlanGraph, paths: Paths, orders: Sequence[Order]) -> None:
        self.graph, self.paths = graph, paths
        load = Counter(
            link for order in orders for edge in zip(order, (*order[1:], order[0]), strict=True) for link in paths[edge]
        )
        self.load = {link: number / graph.links[link].gbps for link, number in load.items()}
        self.most = max(self.load.values())

    def edges(self, order: Order) -> tuple[list[Edge], list[Edge]]:
        """(child, parent) into the first of an order, and (parent, child) from there, as `along_ring` has them."""
        up, down = along_ring(order)
        root, second, last = order[0], order[1], order[-1]
        if self._pays(down[-1], (root, last)):
            down = [*down[:-1], (root, last)]
        if self._pays(up[0], (second, root)):
            up = [(second, root), *up[1:]]
        return up, down

    def _pays(self, hop: Edge, straight: Edge) -> bool:
        """Whether the hop crosses a full link, and the straight one, which is another, none."""
        if hop == straight or straight not in self.paths:
            return False
        return self._fullest(straight) < self.most == self._fullest(hop)

    def _fullest(self, edge: Edge) -> Fraction:
        return max(self.load.get(link, Fraction(0)) for link in self.paths[edge])
