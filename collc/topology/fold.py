"""Folds large graphs into small ones before they are labeled, by removing repeated structure step by step.

A cluster of thousands of GPUs repeats a small structure. Three rules reduce it. Each rule is applied to the whole graph
at once, so that names and order have no influence:

- twins, vertices of one color with equal links to the same neighbors, become one vertex;
- a vertex with one neighbor becomes part of that neighbor;
- a chain of vertices with two neighbors each becomes part of the link between its ends.

The color of a vertex, or the label of a link, describes all vertices that became part of it. So the folded graph with
its colors and labels determines the whole graph up to isomorphism: two graphs are isomorphic exactly if their folded
graphs are. Twins are a known reduction before labeling (modules). The other two rules recognize series-parallel graphs
(Valdes, Tarjan, Lawler, SIAM J. Comput. 11, 1982).

Each fold of twins is also a symmetry: an automorphism moves each twin, with all vertices that are part of it, to the
place of the next twin.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from collc.limits import spend, uncounted
from collc.topology.graphs import igraph

Digest = bytes
Color = TypeVar("Color", str, bytes)
# The label of a link as seen from one end, and the vertices that are part of the link, in order from that end.
Join = tuple[Digest, tuple[int, ...]]


class Folded:
    """A graph, folded until no rule applies.

    Attributes:
        color: the color of each vertex of the folded graph.
        inside: for each vertex of the folded graph, the vertices of the whole graph that it represents, including
            itself. Vertices of equal color list them in the same order up to isomorphism.
        near: for each vertex of the folded graph, its neighbors, each with the label of the link as seen from the
            vertex, and with the vertices that are part of the link.
        twins: one entry for each fold of twins, in the order of the folds: the cycles of vertices of the whole graph,
            if each twin, with all vertices that are part of it, moves to the place of the next twin.

    Args:
        colors: the color of each vertex; only vertices of one color may replace each other.
        labels: (a, b) -> (the links between a and b as seen from a, the same as seen from b), each pair once.
        joined: also fold twins that are adjacent to each other, as the leaf switches below one server are. Canonical
            orders do not use this, because it would change the fingerprints of earlier versions.
    """

    def __init__(
        self, colors: Sequence[str], labels: Mapping[tuple[int, int], tuple[str, str]], *, joined: bool = False
    ) -> None:
        self.color = {v: _digest("vertex", text.encode()) for v, text in enumerate(colors)}
        self.inside: dict[int, tuple[int, ...]] = {v: (v,) for v in self.color}
        self.near: dict[int, dict[int, Join]] = {v: {} for v in self.color}
        self.twins: list[list[tuple[int, ...]]] = []
        self._joined = joined
        digests: dict[tuple[str, str], Digest] = {}
        for (a, b), (there, back) in labels.items():
            for v, w, seen in ((a, b, (there, back)), (b, a, (back, there))):
                if seen not in digests:
                    digests[seen] = _digest("link", *(text.encode() for text in seen))
                self.near[v][w] = digests[seen], ()
        while self._fold_twins() or self._fold_leaves() or self._fold_chains() or self._fold_joined_twins():
            pass

    def _fold_twins(self) -> bool:
        """Folds vertices of one color with equal links to the same neighbors. Returns False if there are none."""
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for v, ends in self.near.items():
            spend(8 + 4 * len(ends))
            groups[self.color[v], *sorted((w, join[0]) for w, join in ends.items())].append(v)
        return self._fold_groups(groups.values())

    def _fold_joined_twins(self) -> bool:
        """Folds twins that have equal links to each other. Returns False if there are none.

        They have one color, and equal links to the same other neighbors. One call folds twins of one label only.
        """
        if not self._joined:
            return False
        for label in sorted({join[0] for ends in self.near.values() for join in ends.values()}):
            groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
            for v, ends in self.near.items():
                if any(join[0] == label and self.color[w] == self.color[v] for w, join in ends.items()):
                    spend(8 + 4 * len(ends))
                    around = [(v, label), *((w, join[0]) for w, join in ends.items())]
                    groups[self.color[v], *sorted(around)].append(v)
            if self._fold_groups(groups.values()):
                return True
        return False

    def _fold_groups(self, candidates: Iterable[list[int]]) -> bool:
        """Folds groups of twins. Returns False if no group is folded."""
        groups: dict[Digest, list[list[int]]] = defaultdict(list)
        for members in candidates:
            if len(members) > 1:
                groups[self._kind(members)].append(members)
        has_fold = False
        for kind in sorted(groups):
            # If two groups are adjacent, the group that is folded first decides the order inside their links. If the
            # groups are indistinguishable, neither is folded.
            group_of = {v: i for i, members in enumerate(groups[kind]) for v in members}
            for i, members in enumerate(groups[kind]):
                if not any(group_of.get(w, i) != i for w in self.near[members[0]]):
                    self._join_twins(members)
                    has_fold = True
        return has_fold

    def _kind(self, members: Sequence[int]) -> Digest:
        ends = sorted(join[0] + self.color[w] for w, join in self.near[members[0]].items())
        return _digest("group", self.color[members[0]], str(len(members)).encode(), *ends)

    def _join_twins(self, members: Sequence[int]) -> None:
        first, near, member_set = members[0], self.near, set(members)
        others = [w for w in near[first] if w not in member_set]
        lists = [(*self.inside[v], *_flat(near[v][w][1] for w in others)) for v in members]
        self.twins.append(list(zip(*lists, strict=True)))
        link_vertices: list[int] = []
        if members[1] in near[first]:
            self.twins[-1] += self._turned_between(members)
            link_vertices = [x for v, w in itertools.combinations(members, 2) for x in near[v][w][1]]
            for v, w in itertools.permutations(members, 2):
                del near[v][w]
        for w, (label, _) in list(near[first].items()):
            label_back = near[w][first][0]
            near[first][w] = label, _flat(near[v][w][1] for v in members)
            near[w][first] = label_back, _flat(near[w][v][1] for v in members)
        for v in members[1:]:
            for w in near[v]:
                del near[w][v]
        self.inside[first] = (*_flat(self.inside[v] for v in members), *link_vertices)
        self.color[first] = _digest("twins", self.color[first], str(len(members)).encode())
        self._drop(members[1:])

    def _turned_between(self, members: Sequence[int]) -> list[tuple[int, ...]]:
        """Returns the cycles of the vertices in links between adjacent twins, if each twin moves to the next place."""
        count, visited = len(members), set[int]()
        cycles = []
        for step in range(1, count // 2 + 1):
            ways = [self.near[v][members[(i + step) % count]][1] for i, v in enumerate(members)]
            for cycle in zip(*ways, strict=True):
                # If step is half the count, every link appears twice, once from each end.
                if cycle[0] not in visited:
                    cycles.append(tuple(dict.fromkeys(cycle)))
                    visited.update(cycle)
        return cycles

    def _fold_leaves(self) -> bool:
        """Makes each vertex with one neighbor part of this neighbor. Returns False if there are none."""
        leaves: dict[int, list[int]] = defaultdict(list)
        for v, ends in self.near.items():
            if len(ends) == 1 and len(self.near[w := next(iter(ends))]) > 1:
                leaves[w].append(v)
        for w, members in leaves.items():
            # Vertices with equal keys are also equal in all vertices that are part of them.
            members.sort(key=lambda v: (self.near[w][v][0], self.color[v]))
            parts = [part for v in members for part in (self.near[w][v][0], self.color[v])]
            self.color[w] = _digest("leaves", self.color[w], *parts)
            self.inside[w] += _flat((*self.near[w].pop(v)[1], *self.inside[v]) for v in members)
            self._drop(members)
        return bool(leaves)

    def _fold_chains(self) -> bool:
        """Makes chains of vertices with two neighbors part of links. Returns False if there are none."""
        chains_of: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
        visited: set[int] = set()
        for v in self.near:
            if len(self.near[v]) == 2 and v not in visited:
                chain = self._chain(v)
                visited.update(chain)
                a, b = chain[0], chain[-1]
                if a != b:
                    chains_of[min(a, b), max(a, b)].append(chain if a < b else chain[::-1])
        # Compute all links before any of them changes the graph.
        links = {}
        for (a, b), chains in chains_of.items():
            links[a, b] = self._bundle(a, b, chains)
            links[b, a] = self._bundle(b, a, [chain[::-1] for chain in chains])
        for (a, b), join in links.items():
            self.near[a][b] = join
        for (a, b), chains in chains_of.items():
            for chain in chains:
                del self.near[a][chain[1]], self.near[b][chain[-2]]
                self._drop(chain[1:-1])
        return bool(chains_of)

    def _chain(self, middle: int) -> list[int]:
        """Returns the longest chain through `middle`, from end to end; in a ring, from `middle` around to itself."""
        first, second = self.near[middle]
        ahead = self._walk(middle, first)
        if ahead[-1] == middle:
            return [middle, *ahead]
        return [*reversed(self._walk(middle, second)), middle, *ahead]

    def _walk(self, start: int, v: int) -> list[int]:
        """Returns the path from `v`, a neighbor of `start`, to `start` or the first vertex without two neighbors."""
        path, previous = [v], start
        while len(self.near[v]) == 2 and v != start:
            previous, v = v, next(w for w in self.near[v] if w != previous)
            path.append(v)
        return path

    def _bundle(self, a: int, b: int, chains: Iterable[Sequence[int]]) -> Join:
        """Returns the link from `a` to `b` with some chains as part of it, as seen from `a`."""
        parts: list[Join] = []
        for chain in chains:
            label, content = [], list[int]()
            for v, w in itertools.pairwise(chain):
                label += [self.near[v][w][0], self.color[w] if w != b else b""]
                content += [*self.near[v][w][1], *(self.inside[w] if w != b else ())]
            parts.append((_digest("chain", *label), tuple(content)))
        if b in self.near[a]:
            parts.append(self.near[a][b])
        parts.sort(key=lambda part: part[0])
        return _digest("bundle", *(part[0] for part in parts)), _flat(part[1] for part in parts)

    def _drop(self, members: Iterable[int]) -> None:
        for v in members:
            del self.near[v], self.inside[v], self.color[v]


def folded_order(colors: Sequence[str], labels: Mapping[tuple[int, int], tuple[str, str]]) -> tuple[int, ...]:
    """Returns the vertices of a graph in a canonical order; arguments as for `Folded`.

    BLISS orders the folded graph. Each adjacent pair gets an extra vertex between the two whose color is its label; two
    in a row if the label depends on the direction; and none if the colors of the ends determine the label. In the
    resulting order, the vertices that are part of the folded vertices and links replace these.
    """
    folded = Folded(colors, labels)
    vertices = list(folded.color)
    place = {v: i for i, v in enumerate(vertices)}
    digests = [folded.color[v] for v in vertices]
    pairs = [(v, w) for v in vertices for w in folded.near[v] if place[v] < place[w]]
    # (color of one end, color of the other) -> the labels, as seen from both ends, of all such adjacent pairs.
    kinds: dict[tuple[bytes, bytes], set[tuple[bytes, bytes]]] = defaultdict(set)
    for v, w in [*pairs, *((w, v) for v, w in pairs)]:
        kinds[folded.color[v], folded.color[w]].add((folded.near[v][w][0], folded.near[w][v][0]))
    edges = []
    for v, w in pairs:
        (forth, tail), (back, head) = sorted([(folded.near[v][w][0], v), (folded.near[w][v][0], w)])
        if len(kinds[folded.color[v], folded.color[w]]) == 1:
            edges.append((place[tail], place[head]))
            continue
        middle = [b"pair" + forth] if forth == back else [b"tail" + forth + back, b"head" + forth + back]
        edges += itertools.pairwise([place[tail], *range(len(digests), len(digests) + len(middle)), place[head]])
        digests += middle
    order = [vertices[i] for i in labeled(digests, edges) if i < len(vertices)]
    rank = {v: i for i, v in enumerate(order)}
    inside = [u for v in order for u in folded.inside[v]]
    joined = sorted((rank[v], rank[w], v, w) for v in order for w in folded.near[v] if rank[v] < rank[w])
    return (*inside, *(u for _, _, v, w in joined for u in folded.near[v][w][1]))


def labeled(colors: Sequence[Color], edges: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the vertices of an undirected graph with colored vertices in the canonical order of BLISS."""
    number = {color: i for i, color in enumerate(sorted(set(colors)))}
    colored = igraph.Graph(n=len(colors), edges=edges)
    # Entry i of the permutation is the vertex at place i. Before igraph 1.0 it was the place of vertex i.
    with uncounted():
        return list(colored.canonical_permutation(color=[number[color] for color in colors]))


def _digest(what: str, *parts: bytes) -> Digest:
    """Returns 16 bytes that depend only on the parts and on `what`. Parts are digests or texts."""
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hashlib.blake2b(text, digest_size=16, person=what.encode()).digest()


def _flat(lists: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(v for part in lists for v in part)
