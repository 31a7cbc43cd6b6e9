"""Finds the symmetry of a graph. Equivalent GPUs, servers and switch planes then give a small LP instead of a huge one.

The packing LP of a graph with a group H of automorphisms has an optimal solution that is invariant under H, so one row
per orbit of links and one tree per orbit of trees are enough. We search for commuting automorphisms of three simple
kinds. Ranks in the order of servers are read as numbers in mixed radix (GPU in its server, server in its row, ...), and
a digit is rotated. If an allocation has holes, servers of equal size and twin GPUs are rotated instead. Networks of
several levels, which have neither, are divided into nested twins. Every automorphism is checked link by link.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.packing.solvers.network import Net
from collc.packing.symmetry.nested import nested_symmetry
from collc.packing.symmetry.partial import partial_symmetry
from collc.packing.symmetry.refine import Automorphism, Refiner

# From _LEVELS_FROM ranks on, networks of several levels of switches are divided into nested twins. A result with at
# most _FEW_ORBITS orbits of ranks, and at most an eighth of the ranks, needs no other search.
_LEVELS_FROM, _FEW_ORBITS = 32, 16


@dataclass(frozen=True)
class Symmetry:
    """Commuting automorphisms, and the smallest member of the orbit of each link and of each rank."""

    generators: tuple[Automorphism, ...]
    link_orbit: tuple[int, ...]
    rank_orbit: tuple[int, ...]

    def elements(self) -> list[tuple[Fraction, tuple[int, ...], tuple[int, ...]]]:
        """Returns elements of the group that spread every link and every rank evenly over its orbit.

        Each element is (weight, image of each vertex, image of each link). The weights add up to 1. Generators that
        move no link and no rank in common are not combined. They are applied at the same time, like the hands of one
        clock, which still spreads evenly: 8 servers with 1 to 8 twins need 22 elements instead of 40,320.
        """
        nverts = len(self.generators[0].vertices) if self.generators else len(self.rank_orbit)
        found = [(Fraction(1), tuple(range(nverts)), tuple(range(len(self.link_orbit))))]
        for hands in _side_by_side(self.generators, len(self.rank_orbit)):
            turned = clock(hands, nverts, len(self.link_orbit))
            found = [
                (w1 * w2, tuple(map(v2.__getitem__, v1)), tuple(map(x2.__getitem__, x1)))
                for w2, v2, x2 in turned
                for w1, v1, x1 in found
            ]
        return found


def _side_by_side(generators: Sequence[Automorphism], nranks: int) -> list[list[Automorphism]]:
    """Returns the generators in groups within which no two move the same link or rank."""
    groups: list[tuple[list[Automorphism], set[int], set[int]]] = []
    for generator in generators:
        links = {x for x, y in enumerate(generator.links) if x != y}
        ranks = {v for v in range(nranks) if generator.vertices[v] != v}
        for members, moved, left in groups:
            if not moved & links and not left & ranks:
                members.append(generator)
                moved |= links
                left |= ranks
                break
        else:
            groups.append(([generator], links, ranks))
    return [members for members, _, _ in groups]


def clock(
    hands: Sequence[Automorphism], nverts: int, nlinks: int
) -> list[tuple[Fraction, tuple[int, ...], tuple[int, ...]]]:
    """Returns the positions of a clock whose hands are automorphisms.

    All hands turn once, each in as many equal steps as its order. A position is (fraction of the time, image of each
    vertex, image of each link).
    """
    times = sorted({Fraction(k, hand.order) for hand in hands for k in range(hand.order)})
    found = []
    vertices, links = tuple(range(nverts)), tuple(range(nlinks))
    for time, following in zip(times, [*times[1:], Fraction(1)], strict=True):
        if time:
            for hand in hands:
                if (time * hand.order).denominator == 1:
                    vertices = tuple(map(hand.vertices.__getitem__, vertices))
                    links = tuple(map(hand.links.__getitem__, links))
        found.append((following - time, vertices, links))
    return found


def no_symmetry(net: Net) -> Symmetry:
    """Returns the trivial group: every link and every rank is an orbit."""
    return Symmetry((), tuple(range(net.nlinks)), tuple(range(net.nranks)))


def find_symmetry(net: Net, servers: Sequence[str], root: int | None) -> Symmetry:
    """Returns commuting automorphisms of `net` with their orbits.

    Args:
        servers: the name of the server of every vertex. The search orders ranks by their servers.
        root: a rank that no automorphism may move, or None.
    """
    refiner = Refiner(net, root)
    levels = net.nranks >= _LEVELS_FROM and _has_levels(net)
    nested = merge_generators(orbits(net, nested_symmetry(refiner, root))) if levels else no_symmetry(net)
    if levels and len(set(nested.rank_orbit)) <= min(_FEW_ORBITS, net.nranks // 8):
        return nested
    first: dict[str, int] = {}
    for rank in range(net.nranks):
        first.setdefault(servers[rank], rank)
    order = sorted(range(net.nranks), key=lambda r: (first[servers[r]], r))
    planes = _planes(refiner, net)
    whole = orbits(net, _digits(refiner, order, root) + planes)
    if len(set(whole.rank_orbit)) <= (1 if root is None else 2):
        return whole
    rest = orbits(net, partial_symmetry(refiner, servers, order) + planes)
    return min(whole, rest, nested, key=lambda s: len(set(s.rank_orbit)))


def merge_generators(symmetry: Symmetry) -> Symmetry:
    """Returns the same orbits with fewer generators.

    Two generators that move no link and no rank in common are multiplied if the order of one divides the order of the
    other, so that the product has the larger of the two orders.
    """
    products: list[tuple[Automorphism, set[int], set[int]]] = []
    nranks = len(symmetry.rank_orbit)
    for generator in sorted(symmetry.generators, key=lambda g: -g.order):
        links = {x for x, y in enumerate(generator.links) if x != y}
        ranks = {v for v in range(nranks) if generator.vertices[v] != v}
        for i, (other, moved, left) in enumerate(products):
            if other.order % generator.order == 0 and not moved & links and not left & ranks:
                both = Automorphism(
                    tuple(map(other.vertices.__getitem__, generator.vertices)),
                    tuple(map(other.links.__getitem__, generator.links)),
                    other.order,
                )
                products[i] = both, moved | links, left | ranks
                break
        else:
            products.append((generator, links, ranks))
    return Symmetry(tuple(g for g, _, _ in products), symmetry.link_orbit, symmetry.rank_orbit)


def _has_levels(net: Net) -> bool:
    """Returns whether some forwarder has only forwarders as neighbors, like the upper switches of a fat tree."""
    touched = {v for ends in zip(net.tails, net.heads, strict=True) if min(ends) < net.nranks for v in ends}
    return len(touched | set(range(net.nranks))) < net.nverts


def _digits(refiner: Refiner, order: Sequence[int], root: int | None) -> list[Automorphism]:
    """Returns rotations of digits, from the lowest digit up, with the largest possible modulus at each stride."""
    n = len(order)
    found = []
    stride = 1
    while stride < n:
        modulus, automorphism = _largest(refiner, order, stride, root)
        if automorphism is not None:
            found.append(automorphism)
            stride *= modulus
        else:
            stride = next(d for d in range(stride + 1, n + 1) if n % d == 0 and d % stride == 0)
    return found


def _largest(refiner: Refiner, order: Sequence[int], stride: int, root: int | None) -> tuple[int, Automorphism | None]:
    n = len(order)
    for modulus in range(n // stride, 1, -1):
        if (n // stride) % modulus:
            continue
        fixed = None if root is None else (order.index(root) // stride) % modulus
        moving = [d for d in range(modulus) if d != fixed]
        if len(moving) < 2:
            continue
        following = dict(zip(moving, moving[1:] + moving[:1], strict=True))
        image = [0] * n
        for place, rank in enumerate(order):
            digit = (place // stride) % modulus
            image[rank] = order[place + (following.get(digit, digit) - digit) * stride]
        automorphism = refiner.extend(image, len(moving))
        if automorphism is not None:
            return modulus, automorphism
    return 1, None


def _planes(refiner: Refiner, net: Net) -> list[Automorphism]:
    """Returns rotations of forwarders with equal links to the same vertices, such as NVSwitch planes."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for v in range(net.nranks, net.nverts):
        near = tuple(sorted(refiner.near[v]))
        alike.setdefault(near, []).append(v)
    found = []
    for group in alike.values():
        if len(group) > 1:
            image = list(range(net.nverts))
            for v, w in zip(group, group[1:] + group[:1], strict=True):
                image[v] = w
            automorphism = refiner.automorphism(image, len(group))
            if automorphism is not None:
                found.append(automorphism)
    return found


def orbits(net: Net, generators: Sequence[Automorphism]) -> Symmetry:
    """Returns the symmetry of the generators that merge orbits and commute with the earlier ones that do."""
    kept: list[Automorphism] = []
    moved: list[tuple[set[int], set[int]]] = []
    links, ranks = _Orbits(net.nlinks), _Orbits(net.nranks)
    for g in generators:
        own = {x for x, y in enumerate(g.links) if x != y}, {v for v, w in enumerate(g.vertices) if v != w}
        turned = [(v, g.vertices[v]) for v in own[1] if v < net.nranks]
        joins = any(not ranks.same(v, w) for v, w in turned) or any(not links.same(x, g.links[x]) for x in own[0])
        if joins and all(
            _commute(g.links, h.links, own[0], theirs[0]) and _commute(g.vertices, h.vertices, own[1], theirs[1])
            for h, theirs in zip(kept, moved, strict=True)
        ):
            kept.append(g)
            moved.append(own)
            links.join((x, g.links[x]) for x in own[0])
            ranks.join(turned)
    return Symmetry(tuple(kept), links.smallest(), ranks.smallest())


def _commute(g: Sequence[int], h: Sequence[int], moved: set[int], others: set[int]) -> bool:
    """Returns whether two permutations commute. `moved` is the set that `g` moves, `others` the set that `h` moves."""
    return moved.isdisjoint(others) or all(g[h[x]] == h[g[x]] for x in moved | others)


class _Orbits:
    """Disjoint sets of numbers that can be merged (union-find)."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def _find(self, x: int) -> int:
        above = self._above
        while above[x] != x:
            above[x] = above[above[x]]
            x = above[x]
        return x

    def same(self, x: int, y: int) -> bool:
        """Returns whether both numbers are in one set."""
        return self._find(x) == self._find(y)

    def join(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Merges the sets of the two numbers of each pair."""
        for x, y in pairs:
            low, high = sorted((self._find(x), self._find(y)))
            self._above[high] = low

    def smallest(self) -> tuple[int, ...]:
        """Returns for each number the smallest number of its set."""
        return tuple(self._find(x) for x in range(len(self._above)))
