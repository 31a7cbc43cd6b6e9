"""Colors vertices, and extends permutations of ranks to automorphisms of the whole net, checked link by link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.packing.solvers.network import Net


@dataclass(frozen=True)
class Automorphism:
    """An automorphism of a net.

    Attributes:
        vertices, links: the image of each vertex and of each link.
        order: the number of applications after which every vertex is back at its place.
    """

    vertices: tuple[int, ...]
    links: tuple[int, ...]
    order: int


class Refiner:
    """Extends a permutation of the ranks to the forwarders by color refinement, and checks it link by link.

    Args:
        root: a rank that no automorphism may move.
    """

    def __init__(self, net: Net, root: int | None = None) -> None:
        self.net = net
        # For each vertex its links as (other end, 0 for out and 1 for in, number of the speed), sorted.
        self.near: list[list[tuple[int, int, int]]] = [[] for _ in range(net.nverts)]
        self._links: dict[tuple[int, int, Fraction], list[int]] = {}
        speed: dict[Fraction, int] = {}
        for link in range(net.nlinks):
            tail, head, cap = net.tails[link], net.heads[link], net.caps[link]
            kind = speed.setdefault(cap, len(speed))
            self.near[tail].append((head, 0, kind))
            self.near[head].append((tail, 1, kind))
            self._links.setdefault((tail, head, cap), []).append(link)
        for ends in self.near:
            ends.sort()
        self.color = self._equitable(root)
        self._plain = self._follow(range(net.nranks))

    def _equitable(self, root: int | None) -> list[int]:
        """Returns the colors of the coarsest equitable partition that separates the root. Automorphisms keep colors."""
        n, total = self.net.nranks, self.net.nverts
        color = [2 if v == root else int(v >= n) for v in range(total)]
        count = len({*color})
        while True:
            number: dict[tuple[int, tuple[tuple[int, int, int], ...]], int] = {}
            fresh = []
            for v in range(total):
                ends = tuple(sorted((color[u], way, kind) for u, way, kind in self.near[v]))
                fresh.append(number.setdefault((color[v], ends), len(number)))
            if len(number) == count:
                return fresh
            color, count = fresh, len(number)

    def _follow(self, marks: Sequence[int]) -> list[int]:
        """Returns colors of all vertices if rank r has the color marks[r]. Calls on the same net are comparable."""
        n, total = self.net.nranks, self.net.nverts
        color = [*marks, *(-1 for _ in range(n, total))]
        for _ in range(total):
            fresh = [
                hash((color[v], tuple(sorted((color[u], way, kind) for u, way, kind in self.near[v]))))
                for v in range(n, total)
            ]
            before = len({*color[n:]})
            color[n:] = fresh
            if len({*fresh}) == before:
                break
        return color

    def extend(self, image: Sequence[int], order: int) -> Automorphism | None:
        """Returns an automorphism that moves rank r to image[r], or None if the forwarders cannot follow."""
        n = self.net.nranks
        if any(self.color[rank] != self.color[target] for rank, target in enumerate(image)):
            return None
        marks = [0] * n
        for rank, target in enumerate(image):
            marks[target] = rank
        places: dict[int, list[int]] = {}
        for v, color in enumerate(self._follow(marks)[n:], start=n):
            places.setdefault(color, []).append(v)
        full = list(image)
        for color in self._plain[n:]:
            if not places.get(color):
                return None
            full.append(places[color].pop(0))
        return self.automorphism(full, order)

    def automorphism(self, image: Sequence[int], order: int) -> Automorphism | None:
        """Returns the automorphism with this image of every vertex, or None if `image` is no automorphism.

        Args:
            order: a multiple of the order of the permutation; else the result is None.
        """
        net = self.net
        links = [-1] * net.nlinks
        for (tail, head, cap), members in self._links.items():
            targets = self._links.get((image[tail], image[head], cap), [])
            if len(targets) != len(members):
                return None
            for link, target in zip(members, targets, strict=True):
                links[link] = target
        return Automorphism(tuple(image), tuple(links), order) if _comes_back(image, order) else None


def _comes_back(image: Sequence[int], order: int) -> bool:
    """Returns whether every element is back at its place after `order` applications (and perhaps earlier)."""
    seen = [False] * len(image)
    for start in range(len(image)):
        length, v = 0, start
        while not seen[v]:
            seen[v], v, length = True, image[v], length + 1
        if v != start or order % max(length, 1):
            return False
    return True
