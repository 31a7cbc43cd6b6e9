"""Chooses the images that a tree needs under a symmetry: few, but enough to spread its root and its loads evenly.

An optimal solution up to symmetry divides the weight of each tree equally among its images. Not all images need to be
written out. A generator that keeps the root and the load of every link changes nothing. Two generators are applied at
the same time, like the hands of one clock, instead of in all combinations, if no orbit of links has uneven loads for
both of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from collc.packing.solvers.columns import Column
from collc.packing.symmetry.groups import Symmetry, clock
from collc.packing.symmetry.refine import Automorphism

# (fraction of the weight, image of each vertex, image of each link). The fractions of a list add up to 1.
Element = tuple[Fraction, tuple[int, ...], tuple[int, ...]]


class Spreader:
    """Finds images of columns under one symmetry of a net with `nverts` vertices."""

    def __init__(self, symmetry: Symmetry, nverts: int) -> None:
        self._symmetry, self._nverts = symmetry, nverts
        self._turned: dict[tuple[tuple[int, ...], ...], list[Element]] = {}

    def count(self, column: Column) -> int:
        """Returns the length of `elements(column)`. Some of these images may be equal."""
        generators = self._symmetry.generators
        return math.prod(
            len({Fraction(k, generators[g].order) for g in hands for k in range(generators[g].order)})
            for hands in self._clocks(column)
        )

    def elements(self, column: Column) -> list[Element]:
        """Returns elements of the group that together spread the loads, and the root, evenly over their orbits."""
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
        """Returns the generators that the column needs, in groups that may be applied at the same time."""
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
        """Returns the orbits of links within which the generator changes loads, and -1 if it moves the root.

        Only loaded links need a look: if loads differ within a cycle of links, some loaded link has an image of another
        load.
        """
        orbit, image = self._symmetry.link_orbit, generator.links
        found = {orbit[x] for x, times in loads.items() if loads.get(image[x], 0) != times}
        if generator.vertices[root] != root:
            found.add(-1)
        return found


def most_trees(nranks: int, nlinks: int) -> int:
    """Returns the most trees that a plan may have.

    An optimal vertex of the LP over all trees has at most as many trees as there are ranks and links.
    """
    return 4 * (nranks + nlinks)


def images(symmetry: Symmetry, nverts: int, columns: Sequence[Column]) -> int:
    """Returns the number of trees that the columns become when each is spread."""
    spreader = Spreader(symmetry, nverts)
    return sum(spreader.count(column) for column in columns)
