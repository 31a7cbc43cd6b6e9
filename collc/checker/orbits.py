"""The checker of orbits: what a plan up to symmetry claims, computed again from the graph and the generators alone.

It takes no code from the solver, and needs no list of the images. The images of a tree under a group of automorphisms
load all links of one orbit alike, and each of them has as many roots in every place of the root's orbit; so a tree, the
number of its images and the orbits of links and ranks say everything that the list would. The number of images is
counted exactly, as the size of the group over the number of its elements that leave the tree as it is.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.errors import CertificateError
from collc.limits import spend
from collc.packing.model import Hop, Orbit, Orbits, Tree
from collc.topology.model import PlanGraph

# The most products of generators that are looked at to count the images of one tree.
_MOST_PRODUCTS = 1 << 24


@dataclass(frozen=True)
class OrbitSums:
    """What the trees of all orbits come to: GB/s on every link, and of the trees of every root."""

    load: list[Fraction]
    per_root: list[Fraction]


class Turn:
    """A permutation as cycles, so that any power of it is looked up at once.

    Args:
        image: where each element goes.
    """

    def __init__(self, image: Sequence[int]) -> None:
        self.cycle: list[list[int]] = [[] for _ in image]
        self.place = [0] * len(image)
        lengths = {1}
        for start in range(len(image)):
            if self.cycle[start]:
                continue
            cycle: list[int] = []
            x = start
            while not cycle or x != start:
                self.cycle[x] = cycle
                self.place[x] = len(cycle)
                cycle.append(x)
                x = image[x]
            lengths.add(len(cycle))
        self.order = math.lcm(*lengths)

    def power(self, x: int, times: int) -> int:
        """Where x goes in so many turns."""
        cycle = self.cycle[x]
        return cycle[(self.place[x] + times) % len(cycle)]


@dataclass(frozen=True)
class Generator:
    """A checked automorphism: its powers on vertices and on links."""

    vertices: Turn
    links: Turn

    @property
    def order(self) -> int:
        """How often it must be applied until every vertex is back; links are back then too."""
        return self.vertices.order


def check_orbits(graph: PlanGraph, orbits: Orbits, where: str) -> OrbitSums:
    """The sums of `orbits`; raises CertificateError, naming the place, at the first claim that does not hold.

    Whether each tree spans the graph is not asked here: trees of orbits are checked as other trees are. O(hops + links)
    per tree and generator, and a look at one hop or a few for every product of the generators.
    """
    spend(8 * (len(orbits.generators) ** 2 + 1) * (len(graph.vertices) + len(graph.links)))
    images = [_link_images(graph, g, f"{where}.generators[{i}]") for i, g in enumerate(orbits.generators)]
    _check_commuting(graph, orbits.generators, f"{where}.generators")
    link_orbit = orbits_of(len(graph.links), images)
    rank_orbit = orbits_of(graph.nranks, [g[: graph.nranks] for g in orbits.generators])
    group = [Generator(Turn(g), Turn(x)) for g, x in zip(orbits.generators, images, strict=True)]
    link_sizes, rank_sizes = Counter(link_orbit), Counter(rank_orbit)
    by_orbit = dict.fromkeys(link_sizes, Fraction(0))
    by_root = dict.fromkeys(rank_sizes, Fraction(0))
    shapes = []
    for i, orbit in enumerate(orbits.orbits):
        place = f"{where}.trees[{i}]"
        actual = count_images(group, orbit.tree, place)
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
    """Where a generator takes every link; raises unless it is an automorphism of the graph, and not the trivial one."""
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


def orbits_of(count: int, images: Sequence[Sequence[int]]) -> list[int]:
    """The smallest member of the orbit of each of `count` things."""
    orbit = [-1] * count
    for start in range(count):
        if orbit[start] >= 0:
            continue
        orbit[start] = start
        stack = [start]
        while stack:
            x = stack.pop()
            for image in images:
                if orbit[image[x]] < 0:
                    orbit[image[x]] = start
                    stack.append(image[x])
    return orbit


@dataclass(frozen=True)
class Shape:
    """A tree without its weight, to compare images with: its root and the hops of its phases."""

    root: int
    reduce: frozenset[Hop]
    broadcast: frozenset[Hop]

    @classmethod
    def of(cls, tree: Tree) -> Shape:
        """The shape of `tree`."""
        return cls(tree.root, frozenset(tree.reduce), frozenset(tree.broadcast))


# A product of powers of generators: (generator, how often), none of them 0 times.
Power = Sequence[tuple[Generator, int]]


def count_images(group: Sequence[Generator], tree: Tree, where: str = "tree") -> int:
    """How many different trees the products of `group` make of `tree`, itself among them.

    Raises CertificateError where there are too many products to count.
    """
    shape = Shape.of(tree)
    cycles = turns(group, tree, shape)
    total = math.prod(times for _, times in cycles)
    if total > _MOST_PRODUCTS:
        raise CertificateError(f"{total} products of generators are more than are counted", where=where)
    fixing = sum(maps_to(power, tree, shape) for power in powers(cycles))
    assert total % fixing == 0, "elements that fix a tree are a subgroup"
    return total // fixing


def turns(group: Sequence[Generator], tree: Tree, shape: Shape) -> list[tuple[Generator, int]]:
    """The generators that move the tree, each with how often until the tree is back: no other powers make images.

    They commute, so what leaves the tree as it is leaves its images as they are.
    """
    found = []
    for generator in group:
        order = generator.order
        for prime in _primes(order):
            while order % prime == 0 and maps_to([(generator, order // prime)], tree, shape):
                order //= prime
        if order > 1:
            found.append((generator, order))
    return found


def _primes(number: int) -> list[int]:
    """The prime factors, each once."""
    found, p = [], 2
    while p * p <= number:
        if number % p == 0:
            found.append(p)
        while number % p == 0:
            number //= p
        p += 1
    return [*found, number] if number > 1 else found


def powers(cycles: Sequence[tuple[Generator, int]]) -> Iterator[Power]:
    """Every product of fewer than so many turns of each generator; the identity first."""
    for times in itertools.product(*(range(order) for _, order in cycles)):
        yield [(generator, k) for (generator, _), k in zip(cycles, times, strict=True) if k]


def image_of(power: Power, hop: Hop) -> Hop:
    """Where a product of powers takes a hop."""
    src, dst, links = hop.src, hop.dst, hop.links
    for generator, times in power:
        src, dst = generator.vertices.power(src, times), generator.vertices.power(dst, times)
        links = tuple([generator.links.power(x, times) for x in links])
    return Hop(src, dst, links)


def maps_to(power: Power, tree: Tree, shape: Shape) -> bool:
    """Whether the image of `tree` is of that shape; ends at the first hop that has no image there."""
    root = tree.root
    spend(4 * len(power) + 4)
    for generator, times in power:
        root = generator.vertices.power(root, times)
    if root != shape.root or (len(tree.reduce), len(tree.broadcast)) != (len(shape.reduce), len(shape.broadcast)):
        return False
    for hops, among in ((tree.reduce, shape.reduce), (tree.broadcast, shape.broadcast)):
        for hop in hops:
            spend(4 + len(hop.links))
            if image_of(power, hop) not in among:
                return False
    return True


def _check_distinct(group: Sequence[Generator], orbits: Sequence[Orbit], uses: Sequence[object], where: str) -> None:
    """No tree is an image of another one. Trees that use the orbits of links differently cannot be."""
    alike: dict[str, list[int]] = {}
    for i, use in enumerate(uses):
        alike.setdefault(repr(use), []).append(i)
    for members in alike.values():
        for k, i in enumerate(members[1:], start=1):
            shape = Shape.of(orbits[i].tree)
            for j in members[:k]:
                tree = orbits[j].tree
                if any(maps_to(power, tree, shape) for power in powers(turns(group, tree, Shape.of(tree)))):
                    raise CertificateError(f"the tree is an image of tree {j}", where=f"{where}.trees[{i}]")


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
