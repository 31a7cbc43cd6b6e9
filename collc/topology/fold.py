"""Large graphs made small before they are labelled: what a cluster repeats is folded away, step by step.

A cluster of thousands of GPUs is a small structure, repeated. Three rules take it apart, each applied everywhere at
once, so that neither names nor order decide anything:

- twins, vertices of one colour with equal links to the same neighbours, become one vertex;
- a vertex with one neighbour becomes part of that neighbour;
- a chain of vertices with two neighbours each becomes part of the link between its ends.

What was folded is written into the colour of the vertex, or the label of the link, that it became part of. So the
folded graph, with its colours and labels, determines the whole one up to isomorphism: two graphs are isomorphic exactly
if their folded graphs are. Twins are known reductions of graphs before a labelling (modules); the other two rules are
those that recognise series-parallel graphs (Valdes, Tarjan, Lawler, SIAM J. Comput. 11, 1982).

Each fold of twins is also a symmetry: the twins, with all that was folded into them, can be turned.
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
Colour = TypeVar("Colour", str, bytes)
# A label as seen from one end, and the vertices that were folded into the link, in order from that end.
Join = tuple[Digest, tuple[int, ...]]


class Folded:
    """A graph, folded as far as the rules reach.

    Attributes:
        colour: the vertices that are left, each with its colour.
        inside: per vertex that is left those of the whole graph that it stands for, itself among them; vertices of
            equal colour list theirs in the same order up to isomorphism.
        near: per vertex that is left its neighbours, with the label of the link as seen from the vertex, and what was
            folded into the link.
        twins: each fold of twins in turn, the smallest first: the cycles of vertices of the whole graph that turn when
            each twin, with all that was folded into it, takes the place of the next.

    Args:
        colours: of each vertex; only vertices of one colour may stand for each other.
        labels: (a, b) -> (what the links between a and b are, seen from a; the same, seen from b), each pair once.
        joined: fold twins too that are joined to each other, as the leaf switches below one server are; canonical
            orders do without, since they are as old as the fingerprints that come from them.
    """

    def __init__(
        self, colours: Sequence[str], labels: Mapping[tuple[int, int], tuple[str, str]], *, joined: bool = False
    ) -> None:
        self.colour = {v: _digest("vertex", text.encode()) for v, text in enumerate(colours)}
        self.inside: dict[int, tuple[int, ...]] = {v: (v,) for v in self.colour}
        self.near: dict[int, dict[int, Join]] = {v: {} for v in self.colour}
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
        """One vertex for all vertices of one colour with equal links to the same neighbours."""
        alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for v, ends in self.near.items():
            spend(8 + 4 * len(ends))
            alike[self.colour[v], *sorted((w, join[0]) for w, join in ends.items())].append(v)
        return self._fold_groups(alike.values())

    def _fold_joined_twins(self) -> bool:
        """One vertex for all vertices of one colour that are joined alike to each other and to the same neighbours."""
        if not self._joined:
            return False
        for label in sorted({join[0] for ends in self.near.values() for join in ends.values()}):
            alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
            for v, ends in self.near.items():
                if any(join[0] == label and self.colour[w] == self.colour[v] for w, join in ends.items()):
                    spend(8 + 4 * len(ends))
                    around = [(v, label), *((w, join[0]) for w, join in ends.items())]
                    alike[self.colour[v], *sorted(around)].append(v)
            if self._fold_groups(alike.values()):
                return True
        return False

    def _fold_groups(self, alike: Iterable[list[int]]) -> bool:
        """Folds groups of twins; False if there are none."""
        groups: dict[Digest, list[list[int]]] = defaultdict(list)
        for members in alike:
            if len(members) > 1:
                groups[self._kind(members)].append(members)
        folded = False
        for kind in sorted(groups):
            # Of two groups that are joined, the one that is folded first decides the order inside their links: where
            # nothing tells them apart, neither is folded.
            own = {v: i for i, members in enumerate(groups[kind]) for v in members}
            for i, members in enumerate(groups[kind]):
                if not any(own.get(w, i) != i for w in self.near[members[0]]):
                    self._join_twins(members)
                    folded = True
        return folded

    def _kind(self, members: Sequence[int]) -> Digest:
        ends = sorted(join[0] + self.colour[w] for w, join in self.near[members[0]].items())
        return _digest("group", self.colour[members[0]], str(len(members)).encode(), *ends)

    def _join_twins(self, members: Sequence[int]) -> None:
        first, near, own = members[0], self.near, set(members)
        around = [w for w in near[first] if w not in own]
        lists = [(*self.inside[v], *_flat(near[v][w][1] for w in around)) for v in members]
        self.twins.append(list(zip(*lists, strict=True)))
        between: list[int] = []
        if members[1] in near[first]:
            self.twins[-1] += self._turned_between(members)
            between = [x for v, w in itertools.combinations(members, 2) for x in near[v][w][1]]
            for v, w in itertools.permutations(members, 2):
                del near[v][w]
        for w, (label, _) in list(near[first].items()):
            label_back = near[w][first][0]
            near[first][w] = label, _flat(near[v][w][1] for v in members)
            near[w][first] = label_back, _flat(near[w][v][1] for v in members)
        for v in members[1:]:
            for w in near[v]:
                del near[w][v]
        self.inside[first] = (*_flat(self.inside[v] for v in members), *between)
        self.colour[first] = _digest("twins", self.colour[first], str(len(members)).encode())
        self._drop(members[1:])

    def _turned_between(self, members: Sequence[int]) -> list[tuple[int, ...]]:
        """The cycles of what was folded into the links between joined twins when each takes the place of the next."""
        count, seen = len(members), set[int]()
        found = []
        for step in range(1, count // 2 + 1):
            ways = [self.near[v][members[(i + step) % count]][1] for i, v in enumerate(members)]
            for cycle in zip(*ways, strict=True):
                # Half way round every link comes a second time, from its other end.
                if cycle[0] not in seen:
                    found.append(tuple(dict.fromkeys(cycle)))
                    seen.update(cycle)
        return found

    def _fold_leaves(self) -> bool:
        """Vertices with one neighbour become part of it."""
        leaves: dict[int, list[int]] = defaultdict(list)
        for v, ends in self.near.items():
            if len(ends) == 1 and len(self.near[w := next(iter(ends))]) > 1:
                leaves[w].append(v)
        for w, members in leaves.items():
            # Vertices that are equal in this order are alike in all that was folded into them.
            members.sort(key=lambda v: (self.near[w][v][0], self.colour[v]))
            what = [part for v in members for part in (self.near[w][v][0], self.colour[v])]
            self.colour[w] = _digest("leaves", self.colour[w], *what)
            self.inside[w] += _flat((*self.near[w].pop(v)[1], *self.inside[v]) for v in members)
            self._drop(members)
        return bool(leaves)

    def _fold_chains(self) -> bool:
        """Chains of vertices with two neighbours become part of the link between the ends of the chain."""
        found: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
        seen: set[int] = set()
        for v in self.near:
            if len(self.near[v]) == 2 and v not in seen:
                chain = self._chain(v)
                seen.update(chain)
                a, b = chain[0], chain[-1]
                if a != b:
                    found[min(a, b), max(a, b)].append(chain if a < b else chain[::-1])
        # All links are made from the graph as it was.
        made = {}
        for (a, b), chains in found.items():
            made[a, b] = self._bundle(a, b, chains)
            made[b, a] = self._bundle(b, a, [chain[::-1] for chain in chains])
        for (a, b), join in made.items():
            self.near[a][b] = join
        for (a, b), chains in found.items():
            for chain in chains:
                del self.near[a][chain[1]], self.near[b][chain[-2]]
                self._drop(chain[1:-1])
        return bool(found)

    def _chain(self, middle: int) -> list[int]:
        """The longest chain through `middle`, from end to end; of a ring, from `middle` round to it again."""
        one, other = self.near[middle]
        ahead = self._walk(middle, one)
        if ahead[-1] == middle:
            return [middle, *ahead]
        return [*reversed(self._walk(middle, other)), middle, *ahead]

    def _walk(self, start: int, v: int) -> list[int]:
        """From `v`, a neighbour of `start`, on to the first vertex that has not two neighbours, or is `start`."""
        path, before = [v], start
        while len(self.near[v]) == 2 and v != start:
            before, v = v, next(w for w in self.near[v] if w != before)
            path.append(v)
        return path

    def _bundle(self, a: int, b: int, chains: Iterable[Sequence[int]]) -> Join:
        """The link from `a` to `b` with chains as part of it, seen from `a`."""
        parts: list[Join] = []
        for chain in chains:
            label, content = [], list[int]()
            for v, w in itertools.pairwise(chain):
                label += [self.near[v][w][0], self.colour[w] if w != b else b""]
                content += [*self.near[v][w][1], *(self.inside[w] if w != b else ())]
            parts.append((_digest("chain", *label), tuple(content)))
        if b in self.near[a]:
            parts.append(self.near[a][b])
        parts.sort(key=lambda part: part[0])
        return _digest("bundle", *(part[0] for part in parts)), _flat(part[1] for part in parts)

    def _drop(self, members: Iterable[int]) -> None:
        for v in members:
            del self.near[v], self.inside[v], self.colour[v]


def folded_order(colours: Sequence[str], labels: Mapping[tuple[int, int], tuple[str, str]]) -> tuple[int, ...]:
    """The vertices of a graph in an order that isomorphic graphs share; arguments as of `Folded`.

    BLISS orders the folded graph: each joined pair becomes one more vertex between the two whose colour is its label,
    or two in a row where the label depends on the direction; none where the colours of the ends alone say how they are
    joined. Then every vertex and link gives way to what was folded into it.
    """
    folded = Folded(colours, labels)
    left = list(folded.colour)
    place = {v: i for i, v in enumerate(left)}
    seen = [folded.colour[v] for v in left]
    pairs = [(v, w) for v in left for w in folded.near[v] if place[v] < place[w]]
    # (colour of one end, colour of the other) -> the labels, seen from both ends, of all pairs that are joined so
    kinds: dict[tuple[bytes, bytes], set[tuple[bytes, bytes]]] = defaultdict(set)
    for v, w in [*pairs, *((w, v) for v, w in pairs)]:
        kinds[folded.colour[v], folded.colour[w]].add((folded.near[v][w][0], folded.near[w][v][0]))
    edges = []
    for v, w in pairs:
        (there, tail), (back, head) = sorted([(folded.near[v][w][0], v), (folded.near[w][v][0], w)])
        if len(kinds[folded.colour[v], folded.colour[w]]) == 1:
            edges.append((place[tail], place[head]))
            continue
        middle = [b"pair" + there] if there == back else [b"tail" + there + back, b"head" + there + back]
        edges += itertools.pairwise([place[tail], *range(len(seen), len(seen) + len(middle)), place[head]])
        seen += middle
    order = [left[i] for i in labelled(seen, edges) if i < len(left)]
    rank = {v: i for i, v in enumerate(order)}
    inside = [u for v in order for u in folded.inside[v]]
    joined = sorted((rank[v], rank[w], v, w) for v in order for w in folded.near[v] if rank[v] < rank[w])
    return (*inside, *(u for _, _, v, w in joined for u in folded.near[v][w][1]))


def labelled(colours: Sequence[Colour], edges: Sequence[tuple[int, int]]) -> list[int]:
    """The vertices of an undirected graph in BLISS's canonical order; only those of one colour are exchanged."""
    number = {colour: i for i, colour in enumerate(sorted(set(colours)))}
    coloured = igraph.Graph(n=len(colours), edges=edges)
    # Since igraph 1.0 entry i is the vertex that comes to place i (before, the place of vertex i).
    with uncounted():
        return list(coloured.canonical_permutation(color=[number[colour] for colour in colours]))


def _digest(what: str, *parts: bytes) -> Digest:
    """The same 16 bytes for the same parts; parts are digests, or stand alone."""
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hashlib.blake2b(text, digest_size=16, person=what.encode()).digest()


def _flat(lists: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(v for part in lists for v in part)
