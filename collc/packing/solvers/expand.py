"""Turns columns of the outward net into the trees of a plan: images under symmetry, directions, order."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collc.collectives.model import Collective
from collc.packing.model import Hop, Tree
from collc.packing.solvers.columns import Column
from collc.packing.solvers.exact import Solution
from collc.packing.solvers.network import Out
from collc.packing.symmetry.images import Spreader


def representative(column: Column, collective: Collective, mirror: Sequence[int] | None) -> Tree:
    """Returns the tree of a column, with weight 0. `mirror` is as for `expand`."""
    root, up, down = _Image(None, mirror, {}).tree(column, collective)
    return Tree(root, Fraction(0), up, down)


def expand(solved: Solution, collective: Collective, mirror: Sequence[int] | None) -> list[Tree]:
    """Returns every tree of the plan, ordered by root and decreasing weight.

    A column represents as many images under the symmetry as it needs to spread evenly. They share its weight. Equal
    images become one tree.

    Args:
        mirror: for a solution of the opposite collective, the mirrored link of each link (`mirrored_links`).
    """
    first = solved.symmetry
    # Without generators there are no images, so only ranks need numbers.
    nverts = len(first.generators[0].vertices) if first.generators else len(first.rank_orbit)
    spreader = Spreader(first, nverts)
    plain = not first.generators
    hops: dict[tuple[int, int, tuple[int, ...]], Hop] = {}
    # Equal hops are one object, so keys contain their identities: hashing millions of hops by value is slow.
    phases: dict[tuple[int, tuple[int, ...], tuple[int, ...]], tuple[tuple[Hop, ...], tuple[Hop, ...]]] = {}
    weight: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Fraction] = {}
    for column, total in solved.weights:
        for share, vertex, link in spreader.elements(column):
            part = total * share
            root, up, down = _Image(None if plain else (vertex, link), mirror, hops).tree(column, collective)
            key = root, tuple(map(id, up)), tuple(map(id, down))
            phases[key] = up, down
            weight[key] = weight.get(key, Fraction(0)) + part
    trees = [Tree(key[0], weight[key], up, down) for key, (up, down) in phases.items()]
    return sorted(trees, key=lambda t: (t.root, -t.weight))


class _Image:
    """Maps the hops of a column. Equal hops become one object, because there may be millions."""

    def __init__(
        self,
        element: tuple[tuple[int, ...], tuple[int, ...]] | None,
        mirror: Sequence[int] | None,
        hops: dict[tuple[int, int, tuple[int, ...]], Hop],
    ) -> None:
        self._vertex = None if element is None else element[0]
        self._link = None if element is None else element[1]
        self._mirror = mirror
        self._hops = hops

    def tree(self, column: Column, collective: Collective) -> tuple[int, tuple[Hop, ...], tuple[Hop, ...]]:
        root = column.root if self._vertex is None else self._vertex[column.root]
        if collective.both_phases:
            return root, self._phase(column.back, inward=True), self._phase(column.out, inward=False)
        if collective.inward:
            return root, self._phase(column.out, inward=True), ()
        return root, (), self._phase(column.out, inward=False)

    def _phase(self, out: Out, *, inward: bool) -> tuple[Hop, ...]:
        """Returns the hops in the order of the data: parents first outwards, deepest hops first inwards.

        Inward hops lead from child to parent.
        """
        vertex, link, mirror, known = self._vertex, self._link, self._mirror, self._hops
        images = []
        for src, dst, links in reversed(out) if inward else out:
            path = links
            if mirror is not None:
                path = tuple(map(mirror.__getitem__, path))
            if link is not None:
                path = tuple(map(link.__getitem__, path))
            a, b = (src, dst) if vertex is None else (vertex[src], vertex[dst])
            key = (b, a, path[::-1]) if inward else (a, b, path)
            hop = known.get(key)
            if hop is None:
                hop = known[key] = Hop(*key)
            images.append(hop)
        return tuple(images)
