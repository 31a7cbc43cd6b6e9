"""Packs trees of one root at the rate of the least cut by Edmonds' theorem, without an LP. Every vertex must be a rank.

This is Lovasz' proof (1976) as an algorithm, with weights. Let c be the capacities that are left and k the rate that is
still to be packed. A tree T of weight d can be packed iff afterwards a capacity of at least k - d still enters every
set without the root. T grows by one link (u, v) at a time. A link only affects sets that contain v but not u, so it
fits iff a flow of k from the root and u together reaches v in c - d T. Links near the root are tried first, which keeps
trees shallow. If no link fits, d shrinks to the largest weight that some link allows.

This is our own code because networkx, igraph and scipy pack no arborescences.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collc.packing.solvers.columns import Column
from collc.packing.solvers.effort import Effort
from collc.packing.solvers.maxflow import FlowNetwork
from collc.packing.solvers.network import Net

# The effort of one maximum flow, in microseconds per link.
_FLOW_EFFORT = 3.0


def pack_rooted(net: Net, root: int, rate: Fraction, effort: Effort) -> tuple[tuple[Column, Fraction], ...]:
    """Returns out-trees from `root` with weights that add up to `rate`. Each takes O(ranks) maximum flows.

    Args:
        net: a net of ranks only.
        rate: at most the least cut between the root and any rank, in GB/s.

    Raises:
        OutOfEffortError: `effort` is used up.
    """
    assert net.nverts == net.nranks, "a vertex that only forwards may be in no tree"
    scale = net.integer_caps()[1]
    scale *= (rate * scale).denominator
    left, rest = [int(c * scale) for c in net.caps], int(rate * scale)
    found: dict[Column, Fraction] = {}
    while rest:
        tree = _Tree(net, root, left, rest, effort)
        tree.grow()
        for link in tree.links:
            left[link] -= tree.weight
        rest -= tree.weight
        column = Column(0, root, tuple((net.tails[x], net.heads[x], (x,)) for x in tree.links))
        found[column] = found.get(column, Fraction(0)) + Fraction(tree.weight, scale)
    return tuple(found.items())


class _Tree:
    """A tree that grows: its links, parents first, and a weight that it can certainly have.

    Args:
        left: the capacity that is left on each link, an integer.
        rest: the rate that this tree and all later ones must carry together, in the same unit.
    """

    def __init__(self, net: Net, root: int, left: Sequence[int], rest: int, effort: Effort) -> None:
        self._net, self._root, self._left, self._rest, self._effort = net, root, left, rest, effort
        self.links: list[int] = []
        self.weight = min(rest, max(left[link] for link in net.out[root]))
        # Flows run against the links, from a link's head to an extra vertex that is joined to the root and the parent.
        arcs = [*zip(net.heads, net.tails, strict=True), *((v, net.nverts) for v in range(net.nverts))]
        self._flow = FlowNetwork(net.nverts + 1, arcs)

    def grow(self) -> None:
        """Adds links until every rank is reached."""
        net, inside = self._net, {self._root}
        refused: list[int] = []
        waiting = [link for link in net.out[self._root] if self._left[link]]
        while len(inside) < net.nverts:
            if not waiting:
                # A smaller weight leaves more room for the links that did not fit.
                waiting = [link for link in refused if net.heads[link] not in inside]
                refused = []
                self.weight = max(self._room(link) for link in waiting)
                assert self.weight > 0, "the rate exceeds a cut"
            link = waiting.pop(0)
            if net.heads[link] in inside:
                continue
            if self._room(link) < self.weight:
                refused.append(link)
                continue
            inside.add(net.heads[link])
            self.links.append(link)
            waiting += [x for x in net.out[net.heads[link]] if self._left[x] and net.heads[x] not in inside]

    def _room(self, link: int) -> int:
        """Returns the largest weight, up to the present one, that the tree can have together with `link`."""
        net, goal = self._net, self._net.nverts
        child, parent = net.heads[link], net.tails[link]
        weight = min(self.weight, self._left[link])
        while weight > 0:
            self._effort.spend(_FLOW_EFFORT * net.nlinks)
            capacities = [*self._left, *(self._rest * (v in (self._root, parent)) for v in range(net.nverts))]
            for taken in self.links:
                capacities[taken] -= weight
            value = self._flow.maximum_flow(capacities, child, goal)
            if value >= self._rest:
                return weight
            side = self._flow.source_side(capacities, child, goal)
            used = sum(1 for x in self.links if net.heads[x] in side and net.tails[x] not in side)
            # A capacity of value + used x weight enters the set. All of it except `rest` is free for the tree.
            weight = max(0, value + used * weight - self._rest) // used if used else 0
        return 0
