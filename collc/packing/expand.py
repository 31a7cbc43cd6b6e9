"""From columns of the outward net to the trees of a plan: images under symmetry, directions, order."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collc.packing.columns import Column
from collc.packing.exact import Solved
from collc.packing.model import Collective, Hop, Tree
from collc.packing.network import Out

_INWARD = (Collective.REDUCE, Collective.REDUCE_SCATTER)


def expand(solved: Solved, collective: Collective, mirror: Sequence[int] | None) -> list[Tree]:
    """Every tree of the plan, by root and falling weight.

    Each column stands for all its images under the symmetry, which share its weight; equal images become one tree.

    Args:
        mirror: for a solution of the opposite collective, each link's equal the other way.
    """
    elements = solved.symmetry.elements() if solved.symmetry.generators else [None]
    hops: dict[Hop, Hop] = {}
    weight: dict[tuple[int, tuple[Hop, ...], tuple[Hop, ...]], Fraction] = {}
    for column, total in solved.weights:
        part = total / len(elements)
        for element in elements:
            key = _Image(element, mirror, hops).tree(column, collective)
            weight[key] = weight.get(key, Fraction(0)) + part
    trees = [Tree(root, amount, up, down) for (root, up, down), amount in weight.items()]
    return sorted(trees, key=lambda t: (t.root, -t.weight))


class _Image:
    """Maps the hops of a column; equal hops become one object, for there may be millions."""

    def __init__(
        self,
        element: tuple[tuple[int, ...], tuple[int, ...]] | None,
        mirror: Sequence[int] | None,
        hops: dict[Hop, Hop],
    ) -> None:
        self._vertex = None if element is None else element[0]
        self._link = None if element is None else element[1]
        self._mirror = mirror
        self._hops = hops

    def tree(self, column: Column, collective: Collective) -> tuple[int, tuple[Hop, ...], tuple[Hop, ...]]:
        root = column.root if self._vertex is None else self._vertex[column.root]
        if collective is Collective.ALL_REDUCE:
            return root, self._phase(column.back, inward=True), self._phase(column.out, inward=False)
        if collective in _INWARD:
            return root, self._phase(column.out, inward=True), ()
        return root, (), self._phase(column.out, inward=False)

    def _phase(self, out: Out, *, inward: bool) -> tuple[Hop, ...]:
        """Outwards parents first; inwards child to parent, deepest first: the order in which data arrives."""
        vertex, link, mirror, known = self._vertex, self._link, self._mirror, self._hops
        made = []
        for src, dst, links in reversed(out) if inward else out:
            path: Sequence[int] = links
            if mirror is not None:
                path = [mirror[x] for x in path]
            if link is not None:
                path = [link[x] for x in path]
            a, b = (src, dst) if vertex is None else (vertex[src], vertex[dst])
            hop = Hop(b, a, tuple(reversed(path))) if inward else Hop(a, b, tuple(path))
            made.append(known.setdefault(hop, hop))
        return tuple(made)
