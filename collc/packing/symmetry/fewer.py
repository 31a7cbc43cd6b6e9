"""Limits a plan to 4 x (GPUs + links) trees, by a smaller symmetry group if the images of columns are more.

Under a smaller group the LP has more rows, and its optimal vertices have more columns, but each column has fewer
images. Without any symmetry a vertex has at most as many columns as there are links and groups of roots, so the search
ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from collc.errors import PackingError
from collc.packing.solvers.columns import Column
from collc.packing.solvers.exact import Problem, Solution
from collc.packing.solvers.network import Out
from collc.packing.symmetry.groups import Symmetry, orbits
from collc.packing.symmetry.images import Element, Spreader, images, most_trees
from collc.packing.symmetry.refine import Automorphism

# LPs with more entries (columns times rows) are not tried, except for the last one, without symmetry.
_MOST_ENTRIES = 20_000_000


def limit_trees(problem: Problem, solved: Solution) -> Solution:
    """Returns `solved`, or a solution of at least its rate with fewer trees, at most `most_trees` if one is found."""
    net, limit = problem.net, most_trees(problem.net.nranks, problem.net.nlinks)

    def count(found: Solution) -> int:
        return images(found.symmetry, net.nverts, [c for c, _ in found.weights])

    best, fewest = solved, count(solved)
    if fewest <= limit:
        return solved
    for kept in _smaller(solved.symmetry):
        symmetry = orbits(net, kept)
        again = replace(problem, symmetry=symmetry)
        columns = _columns(again, solved)
        generator = again.generator()
        rows = len(generator.caps) + generator.ngroups
        if kept and (len(columns) * rows > _MOST_ENTRIES or generator.ngroups > limit):
            continue
        try:
            found = generator.subset(columns).exact()
        except PackingError:
            continue
        if found is None or found.rate < solved.rate:
            continue
        smaller = replace(solved, rate=found.rate, weights=found.weights, symmetry=symmetry)
        if (now := count(smaller)) < fewest:
            best, fewest = smaller, now
        if fewest <= limit:
            break
    return best


def _smaller(symmetry: Symmetry) -> Iterator[tuple[Automorphism, ...]]:
    """Yields smaller sets of generators, in order of decreasing group size. The last one is empty."""
    generators = symmetry.generators  # without any, the empty set is still tried, as a vertex may have fewer columns
    every = [kept for k in range(max(1, len(generators))) for kept in itertools.combinations(generators, k)]
    yield from sorted(every, key=lambda kept: -math.prod(g.order for g in kept))


def _columns(problem: Problem, solved: Solution) -> list[Column]:
    """Returns the columns of a solution and their images under the generators that `problem` no longer has."""
    left = tuple(g for g in solved.symmetry.generators if g not in problem.symmetry.generators)
    spreader = Spreader(orbits(problem.net, left), problem.net.nverts)
    place = {root: i for i, root in enumerate(problem.roots)}
    found = []
    for column, _ in solved.weights:
        for element in spreader.elements(column):
            root = element[1][column.root]
            group = place[problem.symmetry.rank_orbit[root]] if problem.collective.per_rank else 0
            found.append(Column(group, root, _image(column.out, element), _image(column.back, element)))
    return list(dict.fromkeys(found))


def _image(hops: Out, element: Element) -> Out:
    _, vertex, link = element
    return tuple((vertex[u], vertex[v], tuple(link[x] for x in path)) for u, v, path in hops)
