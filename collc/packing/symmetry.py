"""Symmetry of a graph: many equivalent GPUs, servers and switch planes give a small LP instead of a huge one.

The packing LP of a graph with a group H of automorphisms has an optimal solution that H leaves alone, so one row per
orbit of links
and one tree per orbit of trees are enough. We look for commuting automorphisms of a simple kind: ranks in server
order are read as numbers in mixed radix (GPU in its server, server in its row, ...), and a digit is rotated; where an
allocation has holes, servers of equal size and GPUs that are twins are rotated instead; and networks of several levels,
which neither of these reads, are taken apart into nested twins. Every candidate is checked link by link before it is
used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.packing.nested import nested_symmetry
from collc.packing.network import Net
from collc.packing.partial import partial_symmetry
from collc.packing.refine import Automorphism, Refiner

# From this many ranks on, networks of several levels of switches are taken apart level by level; a result with at most
# so many orbits of ranks, and an eighth of the ranks, needs no other search.
_LEVELS_FROM, _FEW_ORBITS = 32, 16


@dataclass(frozen=True)
class Symmetry:
    """Commuting automorphisms, their orbits of links and of ranks (as the smallest member of each)."""

    generators: tuple[Automorphism, ...]
    link_orbit: tuple[int, ...]
    rank_orbit: tuple[int, ...]

    def elements(self) -> list[tuple[Fraction, tuple[int, ...], tuple[int, ...]]]:
        """(weight, vertex map, link map) of elements that take every link, and every rank, evenly over its orbit.

        The weights add up to 1. Generators that move no link and no rank in common need not be combined: turned side by
        side, as hands of one clock, each is still spread evenly, and 8 servers with 1 to 8 twins take 22 elements
        instead of 40,320.
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
    """The generators in groups within which no two move the same link or rank."""
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
    """All hands turn once, each in as many equal steps as its order: (share of the time, vertex map, link map)."""
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
    """The trivial group: every link and rank its own orbit."""
    return Symmetry((), tuple(range(net.nlinks)), tuple(range(net.nranks)))


def find_symmetry(net: Net, servers: Sequence[str], root: int | None) -> Symmetry:
    """Commuting automorphisms of `net`; with `root` only such that leave it in place.

    Args:
        net: the links.
        servers: the server's name of every vertex; ranks are put in order of their servers first.
        root: a rank that must stay.
    """
    refiner = Refiner(net, root)
    levels = net.nranks >= _LEVELS_FROM and _has_levels(net)
    nested = as_hands(orbits(net, nested_symmetry(refiner, root))) if levels else no_symmetry(net)
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


def as_hands(symmetry: Symmetry) -> Symmetry:
    """The same orbits by fewer and larger turns: generators that move no link and no rank in common turn as one.

    That is done where the order of one divides that of the other, so that the product is no longer a way round.
    """
    made: list[tuple[Automorphism, set[int], set[int]]] = []
    nranks = len(symmetry.rank_orbit)
    for generator in sorted(symmetry.generators, key=lambda g: -g.order):
        links = {x for x, y in enumerate(generator.links) if x != y}
        ranks = {v for v in range(nranks) if generator.vertices[v] != v}
        for i, (other, moved, left) in enumerate(made):
            if other.order % generator.order == 0 and not moved & links and not left & ranks:
                both = Automorphism(
                    tuple(map(other.vertices.__getitem__, generator.vertices)),
                    tuple(map(other.links.__getitem__, generator.links)),
                    other.order,
                )
                made[i] = both, moved | links, left | ranks
                break
        else:
            made.append((generator, links, ranks))
    return Symmetry(tuple(g for g, _, _ in made), symmetry.link_orbit, symmetry.rank_orbit)


def _has_levels(net: Net) -> bool:
    """Whether some forwarder has only forwarders for neighbours, as the upper switches of a fat tree have."""
    touched = {v for ends in zip(net.tails, net.heads, strict=True) if min(ends) < net.nranks for v in ends}
    return len(touched | set(range(net.nranks))) < net.nverts


def _digits(refiner: Refiner, order: Sequence[int], root: int | None) -> list[Automorphism]:
    """Rotations of digits, from the fastest running one up; at each stride the largest modulus that works."""
    n = len(order)
    found = []
    stride = 1
    while stride < n:
        modulus, made = _largest(refiner, order, stride, root)
        if made is not None:
            found.append(made)
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
        made = refiner.extend(image, len(moving))
        if made is not None:
            return modulus, made
    return 1, None


def _planes(refiner: Refiner, net: Net) -> list[Automorphism]:
    """Rotations of forwarders that are joined to the same vertices by equal links, such as NVSwitch planes."""
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
            made = refiner.automorphism(image, len(group))
            if made is not None:
                found.append(made)
    return found


def orbits(net: Net, generators: Sequence[Automorphism]) -> Symmetry:
    """Keeps the generators that commute with those before and join orbits, and joins them."""
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
    """Whether two permutations commute; `moved` is all that `g` moves, `others` all that `h` moves."""
    return moved.isdisjoint(others) or all(g[h[x]] == h[g[x]] for x in moved | others)


class _Orbits:
    """Sets of numbers that are joined step by step."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def _find(self, x: int) -> int:
        above = self._above
        while above[x] != x:
            above[x] = above[above[x]]
            x = above[x]
        return x

    def same(self, x: int, y: int) -> bool:
        """Whether both are in one set."""
        return self._find(x) == self._find(y)

    def join(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Joins the sets of each two."""
        for x, y in pairs:
            low, high = sorted((self._find(x), self._find(y)))
            self._above[high] = low

    def smallest(self) -> tuple[int, ...]:
        """For each number the smallest of its set."""
        return tuple(self._find(x) for x in range(len(self._above)))
