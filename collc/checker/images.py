"""Counts the different images of a tree under commuting automorphisms, and finds whether a tree is an image of another.

There are too many products of generators to look at all. So a chain of links of the tree is chosen such that an element
that fixes all links of the chain fixes every link of the tree. In an abelian group, Schreier's generators of each
stabilizer form a basis: for each generator, the least power that returns into the orbit so far. An element that fixes
the tree maps the first link of the chain to a link of the tree, then the second one, and so on. The search tries these
images link by link, and most attempts end after a step or two. The number of images is the number of elements divided
by the number of elements that fix the tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collc.errors import CertificateError
from collc.limits import spend
from collc.packing.model import Hop, Tree

# The most images of links that the search looks at for one tree.
_MOST_LOOKS = 1 << 22
# The number of refinement rounds that distinguish the links of a tree by their neighbors.
_ROUNDS = 3


class Turn:
    """A permutation as cycles, so that every power is a look-up.

    Args:
        image: the image of each element.
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
        """Returns the image of x under the given power."""
        cycle = self.cycle[x]
        return cycle[(self.place[x] + times) % len(cycle)]


@dataclass(frozen=True)
class Generator:
    """A checked automorphism: its powers on vertices and on links."""

    vertices: Turn
    links: Turn

    @property
    def order(self) -> int:
        """The number of applications after which every vertex is back at its place. Links are back then too."""
        return self.vertices.order


# A product of powers of generators, as (generator, exponent). No exponent is 0.
Power = Sequence[tuple[Generator, int]]
# The same as the exponent of each generator of a group, below its order.
Element = tuple[int, ...]


def orbits_of(count: int, images: Sequence[Sequence[int]]) -> list[int]:
    """Returns for each number below `count` the smallest number of its orbit."""
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
    """A tree without its weight, for comparisons of images: its root and the sets of hops of its phases."""

    root: int
    reduce: frozenset[Hop]
    broadcast: frozenset[Hop]

    @classmethod
    def of(cls, tree: Tree) -> Shape:
        """Returns the shape of `tree`."""
        return cls(tree.root, frozenset(tree.reduce), frozenset(tree.broadcast))


def image_of(power: Power, hop: Hop) -> Hop:
    """Returns the image of a hop under a product of powers."""
    src, dst, links = hop.src, hop.dst, hop.links
    for generator, times in power:
        src, dst = generator.vertices.power(src, times), generator.vertices.power(dst, times)
        links = tuple([generator.links.power(x, times) for x in links])
    return Hop(src, dst, links)


def maps_to(power: Power, tree: Tree, shape: Shape) -> bool:
    """Returns whether the image of `tree` has this shape. Ends at the first hop whose image is not in it."""
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


class Group:
    """The products of commuting generators.

    Args:
        generators: checked automorphisms.
        link_orbit: for each link the smallest link of its orbit.
    """

    def __init__(self, generators: Sequence[Generator], link_orbit: Sequence[int]) -> None:
        self.generators, self.link_orbit = tuple(generators), link_orbit
        self._orders = [g.order for g in generators]
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, what: tuple[int, ...]) -> int:
        """Returns a number above 0 that is equal for equal tuples, in all trees of the group."""
        return self._numbers.setdefault(what, len(self._numbers) + 1)

    def move(self, element: Element, link: int) -> int:
        """Returns the image of a link under an element."""
        for generator, times in zip(self.generators, element, strict=True):
            if times:
                link = generator.links.power(link, times)
        return link

    def plus(self, a: Element, b: Element, times: int = 1) -> Element:
        """Returns the product of `a` and a power of `b`."""
        return tuple([(x + times * y) % order for x, y, order in zip(a, b, self._orders, strict=True)])

    def power(self, element: Element) -> Power:
        """Returns the element as a product of powers."""
        return [(g, times) for g, times in zip(self.generators, element, strict=True) if times]

    @property
    def identity(self) -> Element:
        """The element that moves nothing."""
        return (0,) * len(self.generators)


# The links of a tree by phase and color. An element that fixes the tree maps a link to a link of the same phase and
# color.
_Classes = dict[tuple[int, int], set[int]]


def _classes(group: Group, tree: Tree) -> _Classes:
    """Returns the links of a tree by phase and color. Colors depend on orbits, hops, and the hops next to these."""
    phases = tree.reduce, tree.broadcast
    number = group.number
    spend(_ROUNDS * sum(8 + 4 * len(hop.links) for hops in phases for hop in hops))
    color = [{x: group.link_orbit[x] for hop in hops for x in hop.links} for hops in phases]
    ranks = dict.fromkeys((v for hops in phases for hop in hops for v in (hop.src, hop.dst)), 0) | {tree.root: 1}
    count = 0
    for _ in range(_ROUNDS):
        on_link: list[dict[int, list[int]]] = [{x: [] for x in own} for own in color]
        on_rank: dict[int, list[int]] = {v: [] for v in ranks}
        for phase, hops in enumerate(phases):
            own = color[phase]
            for hop in hops:
                what = number((phase, ranks[hop.src], ranks[hop.dst], *[own[x] for x in hop.links]))
                on_rank[hop.src].append(what)
                on_rank[hop.dst].append(-what)
                for x in hop.links:
                    on_link[phase][x].append(what)
        color = [{x: number((color[i][x], *sorted(on))) for x, on in of.items()} for i, of in enumerate(on_link)]
        ranks = {v: number((ranks[v], *sorted(on))) for v, on in on_rank.items()}
        before, count = count, sum(len(set(own.values())) for own in color)
        if count == before:
            break
    found: _Classes = {}
    for phase, own in enumerate(color):
        for link, what in own.items():
            found.setdefault((phase, what), set()).add(link)
    return found


class _Level:
    """The orbit of one link of the chain under the elements that fix the earlier links.

    `rest` is a basis of the elements that also fix this link.
    """

    def __init__(self, group: Group, key: tuple[int, int], link: int, basis: Sequence[Element]) -> None:
        self.key, self.link, self._group = key, link, group
        # Each link of the orbit with the exponents of the basis elements that reach it, in mixed radix.
        self.place = {link: 0}
        self._digits: list[tuple[int, Element]] = []
        rest = []
        for element in basis:
            steps, at = 1, group.move(element, link)
            while at not in self.place:
                steps, at = steps + 1, group.move(element, at)
            back = group.plus(group.identity, self.element(at), -1)
            rest.append(group.plus(back, element, steps))
            layer, size = list(self.place.items()), len(self.place)
            spend(8 * steps * size)
            for k in range(1, steps):
                layer = [(group.move(element, x), i + size) for x, i in layer]
                self.place.update(layer)
                assert len(self.place) == (k + 1) * size
            self._digits.append((steps, element))
        self.rest = [element for element in rest if any(element)]
        # Elements that fix the earlier links and the whole tree. `Chain._count_fixing` sets it.
        self.fixing: list[Element] = []

    def element(self, at: int) -> Element:
        """Returns the element that maps the link to `at`."""
        index, found = self.place[at], self._group.identity
        for steps, element in self._digits:
            index, times = divmod(index, steps)
            found = self._group.plus(found, element, times)
        return found


class Chain:
    """The chain of a tree's links (see the module's docstring).

    Args:
        where: the place of the tree, for errors.
    """

    def __init__(self, group: Group, tree: Tree, where: str = "tree") -> None:
        self._group, self._tree, self._where = group, tree, where
        self._looks = 0
        self._images: int | None = None
        self._own = _classes(group, tree)
        self.levels: list[_Level] = []
        basis = [tuple(int(i == j) for j in range(len(group.generators))) for i in range(len(group.generators))]
        basis = [element for element in basis if any(group.plus(element, group.identity))]
        for key, links in sorted(self._own.items(), key=lambda item: (len(item[1]), item[0])):
            for link in sorted(links):
                if not basis:
                    return
                if any(group.move(element, link) != link for element in basis):
                    self.levels.append(_Level(group, key, link, basis))
                    basis = self.levels[-1].rest

    @property
    def size(self) -> int:
        """The number of elements, where elements with the same images of the tree's links count once."""
        return math.prod(len(level.place) for level in self.levels)

    def count(self) -> int:
        """Returns the number of different images of the tree, including itself.

        Raises:
            CertificateError: the search would have to look at too many images of links.
        """
        if self._images is None:
            self._images = self.size // self._count_fixing()
        return self._images

    def _count_fixing(self) -> int:
        """Returns the number of elements that fix the tree, counted as in `size`."""
        shape = Shape.of(self._tree)
        fixing: list[Element] = []
        total = 1
        for i in reversed(range(len(self.levels))):
            level = self.levels[i]
            good, bad = {level.link}, set[int]()
            for at in sorted(self._own[level.key] & level.place.keys()):
                if at in good or at in bad:
                    continue
                found = self._find(level.element(at), i + 1, self._own, shape)
                if found is None:
                    bad |= self._closure(at, fixing)
                else:
                    fixing.append(found)
                    good = self._closure(level.link, fixing)
            level.fixing = list(fixing)
            total *= len(good)
        assert self.size % total == 0, "elements that fix a tree are a subgroup"
        return total

    def reaches(self, other: Tree) -> bool:
        """Returns whether `other` is an image of the tree."""
        theirs = _classes(self._group, other)
        if {k: len(v) for k, v in self._own.items()} != {k: len(v) for k, v in theirs.items()}:
            return False
        self.count()
        return self._find(self._group.identity, 0, theirs, Shape.of(other)) is not None

    def _find(self, element: Element, depth: int, among: _Classes, shape: Shape) -> Element | None:
        """Returns an element that maps the tree to `shape`, or None.

        It is a product of `element` with an element that fixes the first `depth` links of the chain. Attempts that
        differ by an element that fixes the tree have the same result, so only one of them is made.
        """
        if depth == len(self.levels):
            return element if maps_to(self._group.power(element), self._tree, shape) else None
        level = self.levels[depth]
        failed: set[int] = set()
        for at, further in self._ways(level, element, among[level.key]):
            if at not in failed:
                found = self._find(self._group.plus(element, further), depth + 1, among, shape)
                if found is not None:
                    return found
                failed |= self._closure(at, level.fixing)
        return None

    def _ways(self, level: _Level, element: Element, wanted: set[int]) -> Iterator[tuple[int, Element]]:
        """Yields (a link of `wanted`, the element of the level that, with `element`, maps the level's link to it)."""
        self._looks += min(len(level.place), len(wanted))
        spend(8 * min(len(level.place), len(wanted)))
        if self._looks > _MOST_LOOKS:
            raise CertificateError("the images of this tree are too many to count", where=self._where)
        move = self._group.move
        if len(level.place) <= len(wanted):
            for before in level.place:
                at = move(element, before)
                if at in wanted:
                    yield at, level.element(before)
            return
        back = self._group.plus(self._group.identity, element, -1)
        for at in sorted(wanted):
            before = move(back, at)
            if before in level.place:
                yield at, level.element(before)

    def _closure(self, link: int, elements: Sequence[Element]) -> set[int]:
        found, waiting = {link}, [link]
        while waiting:
            at = waiting.pop()
            for element in elements:
                image = self._group.move(element, at)
                if image not in found:
                    found.add(image)
                    waiting.append(image)
        return found

    def elements(self) -> Iterator[Element]:
        """Yields every element, the identity first. Elements with the same images of the tree's links occur once."""

        def products(depth: int, element: Element) -> Iterator[Element]:
            if depth == len(self.levels):
                yield element
                return
            for at in self.levels[depth].place:
                yield from products(depth + 1, self._group.plus(element, self.levels[depth].element(at)))

        yield from products(0, self._group.identity)
