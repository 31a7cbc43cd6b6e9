"""Symmetry of a graph: many alike GPUs, servers and switch planes make one small LP instead of a huge one.

The packing LP of a graph with a group H of automorphisms has an optimal solution that H leaves alone, so one row per
orbit of links
and one tree per orbit of trees are enough. We look for commuting automorphisms of a simple kind: ranks in server
order are read as numbers in mixed radix (GPU in its server, server in its row, ...), and a digit is rotated; where an
allocation has holes, servers of equal size and GPUs that are twins are rotated instead. Every candidate is checked link
by link before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.packing.network import Net


@dataclass(frozen=True)
class Automorphism:
    """A symmetry of a net: where each vertex and each link goes, and how often until all are back."""

    vertices: tuple[int, ...]
    links: tuple[int, ...]
    order: int


@dataclass(frozen=True)
class Symmetry:
    """Commuting automorphisms, their orbits of links and of ranks (as the smallest member of each)."""

    generators: tuple[Automorphism, ...]
    link_orbit: tuple[int, ...]
    rank_orbit: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many group elements `elements` yields."""
        size = 1
        for generator in self.generators:
            size *= generator.order
        return size

    def elements(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Every product of powers of the generators, as (vertex map, link map)."""
        nverts = len(self.generators[0].vertices) if self.generators else len(self.rank_orbit)
        found = [(tuple(range(nverts)), tuple(range(len(self.link_orbit))))]
        for generator in self.generators:
            power, grown = found, list(found)
            for _ in range(generator.order - 1):
                power = [
                    (tuple(generator.vertices[v] for v in vs), tuple(generator.links[x] for x in xs))
                    for vs, xs in power
                ]
                grown += power
            found = grown
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
    first = {name: min(r for r in range(net.nranks) if servers[r] == name) for name in {*servers[: net.nranks]}}
    order = sorted(range(net.nranks), key=lambda r: (first[servers[r]], r))
    refiner = _Refiner(net)
    found = _digits(refiner, order, root)
    if not found:
        found = _alike_servers(refiner, servers, order, root) + _twins(refiner, order, root)
    found += _planes(refiner, net)
    return orbits(net, found)


def _digits(refiner: _Refiner, order: Sequence[int], root: int | None) -> list[Automorphism]:
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


def _largest(refiner: _Refiner, order: Sequence[int], stride: int, root: int | None) -> tuple[int, Automorphism | None]:
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


def _alike_servers(
    refiner: _Refiner, servers: Sequence[str], order: Sequence[int], root: int | None
) -> list[Automorphism]:
    """Where servers differ in size (an allocation with a hole): rotations of the servers of each size."""
    members: dict[str, list[int]] = {}
    for rank in order:
        members.setdefault(servers[rank], []).append(rank)
    by_size: dict[int, list[list[int]]] = {}
    for ranks in members.values():
        if root not in ranks:
            by_size.setdefault(len(ranks), []).append(ranks)
    return _rotations(refiner, [list(zip(*group, strict=True)) for _, group in sorted(by_size.items())])


def _twins(refiner: _Refiner, order: Sequence[int], root: int | None) -> list[Automorphism]:
    """Ranks with the same links to the same vertices, rotated: all classes of a size at once, for a small group."""
    classes: dict[tuple[object, ...], list[int]] = {}
    for rank in order:
        if rank != root:
            classes.setdefault(tuple(sorted(refiner.near[rank])), []).append(rank)
    by_size: dict[int, list[tuple[int, ...]]] = {}
    for ranks in classes.values():
        by_size.setdefault(len(ranks), []).append(tuple(ranks))
    return _rotations(refiner, [cycles for _, cycles in sorted(by_size.items())])


def _rotations(refiner: _Refiner, groups: Sequence[Sequence[tuple[int, ...]]]) -> list[Automorphism]:
    """For each group of equally long cycles of ranks the automorphism that advances them all, where there is one."""
    found = []
    for cycles in groups:
        length = len(cycles[0]) if cycles else 0
        if length > 1:
            image = list(range(refiner.net.nranks))
            for cycle in cycles:
                for rank, target in zip(cycle, cycle[1:] + cycle[:1], strict=True):
                    image[rank] = target
            made = refiner.extend(image, length)
            if made is not None:
                found.append(made)
    return found


def _planes(refiner: _Refiner, net: Net) -> list[Automorphism]:
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


class _Refiner:
    """Extends a permutation of the ranks to the forwarders by colour refinement, and checks it link by link."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.near: list[list[tuple[int, int, Fraction]]] = [[] for _ in range(net.nverts)]
        self._links: dict[tuple[int, int, Fraction], list[int]] = {}
        for link in range(net.nlinks):
            tail, head, cap = net.tails[link], net.heads[link], net.caps[link]
            self.near[tail].append((head, 0, cap))
            self.near[head].append((tail, 1, cap))
            self._links.setdefault((tail, head, cap), []).append(link)
        self._plain = self._colours(range(net.nranks))

    def _colours(self, marks: Sequence[int]) -> list[int]:
        """Colours of all vertices when rank r has the mark marks[r]; stable between calls on the same net."""
        n, total = self.net.nranks, self.net.nverts
        colour = [*marks, *(-1 for _ in range(n, total))]
        for _ in range(total):
            fresh = [
                hash((colour[v], tuple(sorted((colour[u], way, cap) for u, way, cap in self.near[v]))))
                for v in range(n, total)
            ]
            before = len({*colour[n:]})
            colour[n:] = fresh
            if len({*fresh}) == before:
                break
        return colour

    def extend(self, image: Sequence[int], order: int) -> Automorphism | None:
        """The automorphism that moves rank r to image[r], if the forwarders can follow."""
        n = self.net.nranks
        marks = [0] * n
        for rank, target in enumerate(image):
            marks[target] = rank
        places: dict[int, list[int]] = {}
        for v, colour in enumerate(self._colours(marks)[n:], start=n):
            places.setdefault(colour, []).append(v)
        full = list(image)
        for colour in self._plain[n:]:
            if not places.get(colour):
                return None
            full.append(places[colour].pop(0))
        return self.automorphism(full, order)

    def automorphism(self, image: Sequence[int], order: int) -> Automorphism | None:
        """`image` as an automorphism of that order, or None if some link has no equal image."""
        net = self.net
        links = [-1] * net.nlinks
        for (tail, head, cap), members in self._links.items():
            targets = self._links.get((image[tail], image[head], cap), [])
            if len(targets) != len(members):
                return None
            for link, target in zip(members, targets, strict=True):
                links[link] = target
        made = Automorphism(tuple(image), tuple(links), order)
        power = list(range(net.nverts))
        for _ in range(order):
            power = [image[v] for v in power]
        return made if power == list(range(net.nverts)) else None


def orbits(net: Net, generators: Sequence[Automorphism]) -> Symmetry:
    """Keeps the generators that commute with those before, and joins orbits."""
    kept: list[Automorphism] = []
    for g in generators:
        if all(
            all(g.vertices[h.vertices[v]] == h.vertices[g.vertices[v]] for v in range(net.nverts))
            and all(g.links[h.links[x]] == h.links[g.links[x]] for x in range(net.nlinks))
            for h in kept
        ):
            kept.append(g)
    links = _joined(net.nlinks, [g.links for g in kept])
    ranks = _joined(net.nranks, [g.vertices[: net.nranks] for g in kept])
    return Symmetry(tuple(kept), tuple(links), tuple(ranks))


def _joined(count: int, maps: Sequence[Sequence[int]]) -> list[int]:
    """The smallest member of the orbit of each of `count` things."""
    orbit = [-1] * count
    for start in range(count):
        if orbit[start] < 0:
            orbit[start] = start
            stack = [start]
            while stack:
                x = stack.pop()
                for image in maps:
                    if orbit[image[x]] < 0:
                        orbit[image[x]] = start
                        stack.append(image[x])
    return orbit
