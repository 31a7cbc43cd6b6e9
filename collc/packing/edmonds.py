"""Trees of one root by Edmonds' theorem, without an LP: where every vertex holds data, the least cut can be packed.

Lovasz' proof (1976) as an algorithm, with weights: a tree T of weight d can be taken out of the capacities c, with k to
go, iff every set that lacks the root is still entered by k - d afterwards. T grows by one link (u, v) at a time. That
touches only sets that hold v and not u, so the link fits iff k can flow from the root and u together to v in c - d T.
Links near the root are tried first, which keeps trees shallow; where none fits, d shrinks to the most that one allows.
Own code: networkx, igraph and scipy pack no arborescences.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collc.packing.columns import Column
from collc.packing.effort import Effort
from collc.packing.maxflow import FlowNetwork
from collc.packing.network import Net

# Effort of one maximum flow, in microseconds per link.
_FLOW = 3.0


def pack_rooted(net: Net, root: int, rate: Fraction, effort: Effort) -> tuple[tuple[Column, Fraction], ...]:
    """Out-trees from `root` with weights that add up to `rate`, in O(ranks) maximum flows each.

    Args:
        net: links between ranks alone.
        rate: at most the least cut between the root and any rank, in GB/s.

    Raises OutOfEffortError if `effort` is used up.
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
    """One tree: its links, parents first, and the weight that it can take for sure.

    Args:
        left: what is left of each link's capacity, an integer.
        rest: what the trees from this one on must carry together.
    """

    def __init__(self, net: Net, root: int, left: Sequence[int], rest: int, effort: Effort) -> None:
        self._net, self._root, self._left, self._rest, self._effort = net, root, left, rest, effort
        self.links: list[int] = []
        self.weight = min(rest, max(left[link] for link in net.out[root]))
        # Flow runs against the links, from the rank in question to a vertex that stands for the root and the parent.
        arcs = [*zip(net.heads, net.tails, strict=True), *((v, net.nverts) for v in range(net.nverts))]
        self._flow = FlowNetwork(net.nverts + 1, arcs)

    def grow(self) -> None:
        """Adds links until every rank is reached."""
        net, inside = self._net, {self._root}
        refused: list[int] = []
        waiting = [link for link in net.out[self._root] if self._left[link]]
        while len(inside) < net.nverts:
            if not waiting:
                # Taking less leaves more room for the links that did not fit.
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
        """The most weight, up to the present one, that the tree can have if it takes `link` too."""
        net, goal = self._net, self._net.nverts
        child, parent = net.heads[link], net.tails[link]
        weight = min(self.weight, self._left[link])
        while weight > 0:
            self._effort.spend(_FLOW * net.nlinks)
            capacities = [*self._left, *(self._rest * (v in (self._root, parent)) for v in range(net.nverts))]
            for taken in self.links:
                capacities[taken] -= weight
            value = self._flow.maximum_flow(capacities, child, goal)
            if value >= self._rest:
                return weight
            side = self._flow.source_side(capacities, child, goal)
            used = sum(1 for x in self.links if net.heads[x] in side and net.tails[x] not in side)
            # The set is entered by value + used x weight, and all but `rest` of that is free for the tree.
            weight = max(0, value + used * weight - self._rest) // used if used else 0
        return 0
