"""Checks plans with orbits of trees, computed only from the graph and the generators.

It uses no code of the solvers and no list of the images. The images of a tree under a group of automorphisms load all
links of an orbit equally, and equally many of them have each member of the root's orbit as their root. So a tree, the
number of its images, and the orbits of links and ranks have the same information as the list. The number of images is
exact: the size of the group divided by the number of its elements that fix the tree.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.checker.images import Chain, Generator, Group, Turn, orbits_of
from collc.errors import CertificateError
from collc.limits import spend
from collc.packing.model import Orbit, Orbits
from collc.topology.model import PlanGraph


@dataclass(frozen=True)
class OrbitSums:
    """The sums over all trees of the orbits: GB/s on every link, and GB/s of the trees of every root."""

    load: list[Fraction]
    per_root: list[Fraction]


def check_orbits(graph: PlanGraph, orbits: Orbits, where: str) -> OrbitSums:
    """Checks the claims of `orbits` and returns their sums.

    The caller checks that each tree spans the graph, as for other trees. Takes O(hops + links) per tree and generator,
    and a look at a few hops for each product of the generators.

    Raises:
        CertificateError: a claim does not hold. The error names the place.
    """
    spend(8 * (len(orbits.generators) ** 2 + 1) * (len(graph.vertices) + len(graph.links)))
    images = [_link_images(graph, g, f"{where}.generators[{i}]") for i, g in enumerate(orbits.generators)]
    _check_commuting(graph, orbits.generators, f"{where}.generators")
    link_orbit = orbits_of(len(graph.links), images)
    rank_orbit = orbits_of(graph.nranks, [g[: graph.nranks] for g in orbits.generators])
    turns = [Generator(Turn(g), Turn(x)) for g, x in zip(orbits.generators, images, strict=True)]
    group = Group(turns, link_orbit)
    link_sizes, rank_sizes = Counter(link_orbit), Counter(rank_orbit)
    by_orbit = dict.fromkeys(link_sizes, Fraction(0))
    by_root = dict.fromkeys(rank_sizes, Fraction(0))
    shapes = []
    for i, orbit in enumerate(orbits.orbits):
        place = f"{where}.trees[{i}]"
        actual = Chain(group, orbit.tree, place).count()
        if actual != orbit.count:
            raise CertificateError(f"the tree has {actual} different images, not {orbit.count}", where=f"{place}.count")
        use: Counter[int] = Counter()
        spend(sum(4 + len(hop.links) for hop in (*orbit.tree.reduce, *orbit.tree.broadcast)))
        for hop in (*orbit.tree.reduce, *orbit.tree.broadcast):
            use.update(link_orbit[x] for x in hop.links)
        for start, times in use.items():
            by_orbit[start] += orbit.tree.weight * orbit.count * times / link_sizes[start]
        start = rank_orbit[orbit.tree.root]
        by_root[start] += orbit.tree.weight * orbit.count / rank_sizes[start]
        shapes.append((start, sorted(use.items()), orbit.count))
    _check_distinct(group, orbits.orbits, shapes, where)
    _check_loads(orbits, link_sizes, by_orbit, where)
    return OrbitSums([by_orbit[start] for start in link_orbit], [by_root[start] for start in rank_orbit])


def _link_images(graph: PlanGraph, image: Sequence[int], where: str) -> list[int]:
    """Returns the image of every link under a generator.

    Raises:
        CertificateError: the generator is no automorphism of the graph, or it is the identity.
    """
    total = len(graph.vertices)
    if sorted(image) != list(range(total)):
        raise CertificateError(f"no permutation of the {total} vertices", where=where)
    if all(v == w for v, w in enumerate(image)):
        raise CertificateError("a generator moves some vertex", where=where)
    for v, w in enumerate(image):
        a, b = graph.vertices[v], graph.vertices[w]
        if (v < graph.nranks) != (w < graph.nranks) or (a.kind, a.multicast, a.reduce) != (
            b.kind,
            b.multicast,
            b.reduce,
        ):
            raise CertificateError(
                f"no automorphism: it takes {a.name} to {b.name}, which is of another kind", where=where
            )
    known = {(x.src, x.dst, x.kind): x for x in graph.links}
    if len(known) != len(graph.links):
        raise CertificateError("orbits need a graph with one link per directed pair and kind", where=where)
    images = []
    for link in graph.links:
        found = known.get((image[link.src], image[link.dst], link.kind))
        if found is None or found.gbps != link.gbps:
            src, dst = graph.vertices[image[link.src]].name, graph.vertices[image[link.dst]].name
            has = "none" if found is None else f"{found.gbps} GB/s"
            raise CertificateError(
                f"no automorphism: link {link.id} of {link.gbps} GB/s goes to {src} -> {dst}, which has {has}",
                where=where,
            )
        images.append(found.id)
    return images


def _check_commuting(graph: PlanGraph, generators: Sequence[Sequence[int]], where: str) -> None:
    for (i, g), (j, h) in itertools.combinations(enumerate(generators), 2):
        for v in range(len(graph.vertices)):
            if g[h[v]] != h[g[v]]:
                name = graph.vertices[v].name
                raise CertificateError(f"generators {i} and {j} do not commute at {name}", where=where)


def _check_distinct(group: Group, orbits: Sequence[Orbit], uses: Sequence[object], where: str) -> None:
    """Checks that no tree is an image of another one. Only trees with equal use of the orbits of links can be."""
    alike: dict[str, list[int]] = {}
    for i, use in enumerate(uses):
        alike.setdefault(repr(use), []).append(i)
    for members in alike.values():
        chains: list[tuple[int, Chain]] = []
        for i in members:
            for j, chain in chains:
                if chain.reaches(orbits[i].tree):
                    raise CertificateError(f"the tree is an image of tree {j}", where=f"{where}.trees[{i}]")
            if i != members[-1]:
                chains.append((i, Chain(group, orbits[i].tree, f"{where}.trees[{i}]")))


def _check_loads(orbits: Orbits, sizes: Counter[int], loads: dict[int, Fraction], where: str) -> None:
    for i, ((start, size), claim) in enumerate(zip(sizes.items(), orbits.loads, strict=False)):
        place = f"{where}.loads[{i}]"
        if claim.link != start:
            raise CertificateError(f"orbits go by their smallest link, the next is {start}", where=f"{place}.link")
        if claim.count != size:
            raise CertificateError(
                f"the orbit of link {start} has {size} links, not {claim.count}", where=f"{place}.count"
            )
        if claim.load != loads[start]:
            raise CertificateError(
                f"each link of this orbit carries {loads[start]} GB/s, not {claim.load}", where=f"{place}.load_gbps"
            )
    if len(orbits.loads) != len(sizes):
        raise CertificateError(
            f"there are {len(sizes)} orbits of links, {len(orbits.loads)} loads", where=f"{where}.loads"
        )
