"""Which images a tree needs under a symmetry: as few as spread its root and its loads evenly.

An optimal solution up to symmetry gives each tree to all its images in equal parts. Most symmetries need not be written
out for it: one that leaves its root in place and loads links as before changes nothing. And where no orbit of links is
loaded unevenly with regard to two of them, both turn at once, as hands of one clock, instead of in all combinations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from collc.packing.columns import Column
from collc.packing.refine import Automorphism
from collc.packing.symmetry import Symmetry, clock

# (share of the weight, where each vertex goes, where each link goes); shares add up to 1
Element = tuple[Fraction, tuple[int, ...], tuple[int, ...]]


class Spreader:
    """The images of columns under one symmetry of a net with `nverts` vertices."""

    def __init__(self, symmetry: Symmetry, nverts: int) -> None:
        self._symmetry, self._nverts = symmetry, nverts
        self._turned: dict[tuple[tuple[int, ...], ...], list[Element]] = {}

    def count(self, column: Column) -> int:
        """How many images `elements` has; some may be equal."""
        generators = self._symmetry.generators
        return math.prod(
            len({Fraction(k, generators[g].order) for g in hands for k in range(generators[g].order)})
            for hands in self._clocks(column)
        )

    def elements(self, column: Column) -> list[Element]:
        """Elements of the group that together spread the loads, and the root, evenly over their orbits."""
        clocks = self._clocks(column)
        if clocks not in self._turned:
            found: list[Element] = [(Fraction(1), tuple(range(self._nverts)), tuple(range(self._nlinks)))]
            for hands in clocks:
                turned = clock([self._symmetry.generators[g] for g in hands], self._nverts, self._nlinks)
                found = [
                    (w1 * w2, tuple(map(v2.__getitem__, v1)), tuple(map(x2.__getitem__, x1)))
                    for w2, v2, x2 in turned
                    for w1, v1, x1 in found
                ]
            self._turned[clocks] = found
        return self._turned[clocks]

    @property
    def _nlinks(self) -> int:
        return len(self._symmetry.link_orbit)

    def _clocks(self, column: Column) -> tuple[tuple[int, ...], ...]:
        """The generators that the column must be turned by, those that may turn at once together."""
        loads = column.loads()
        clocks: list[tuple[list[int], set[int]]] = []
        for g, generator in enumerate(self._symmetry.generators):
            moved = self._uneven(generator, column.root, loads)
            if not moved:
                continue
            for hands, taken in clocks:
                if not taken & moved:
                    hands.append(g)
                    taken |= moved
                    break
            else:
                clocks.append(([g], moved))
        return tuple(tuple(hands) for hands, _ in clocks)

    def _uneven(self, generator: Automorphism, root: int, loads: dict[int, int]) -> set[int]:
        """The orbits of links within which the loads change when the generator turns; -1 stands for the root.

        A turn that changes loads somewhere on its cycle of links changes them at one that is loaded.
        """
        orbit, image = self._symmetry.link_orbit, generator.links
        found = {orbit[x] for x, times in loads.items() if loads.get(image[x], 0) != times}
        if generator.vertices[root] != root:
            found.add(-1)
        return found


def most_trees(nranks: int, nlinks: int) -> int:
    """What a plan may have at most: an optimal vertex of the LP over all trees has no more than ranks and links."""
    return 4 * (nranks + nlinks)


def images(symmetry: Symmetry, nverts: int, columns: Sequence[Column]) -> int:
    """How many trees the columns become when each is spread."""
    spreader = Spreader(symmetry, nverts)
    return sum(spreader.count(column) for column in columns)
