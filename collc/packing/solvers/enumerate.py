"""Lists all trees of limited depth, if they are few. The LP then needs no pricing, and the least depth is proven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

from collc.packing.solvers.network import Net, Out, Path

# The most links of one hop. `hop_paths` leaves out longer simple paths.
_MAX_PATH = 8
# The search looks at this many partial trees for each tree of the limit.
_PATIENCE = 8


def hop_paths(net: Net) -> dict[tuple[int, int], list[Path]]:
    """Returns for each pair of ranks every simple path of up to 8 links between them that passes only forwarders."""
    found: dict[tuple[int, int], list[Path]] = {}
    for source in range(net.nranks):
        stack: list[tuple[int, Path]] = [(source, ())]
        while stack:
            vertex, path = stack.pop()
            for link in net.out[vertex]:
                head = net.heads[link]
                if head == source or any(net.tails[x] == head for x in path):
                    continue
                if head < net.nranks:
                    found.setdefault((source, head), []).append((*path, link))
                elif len(path) + 1 < _MAX_PATH:
                    stack.append((head, (*path, link)))
    return found


def shallow_trees(net: Net, root: int, depth: int, limit: int) -> list[Out] | None:
    """Returns every out-tree from `root` of at most `depth` levels of hops, or None if there are more than `limit`.

    The search adds a level at a time: a set of the remaining ranks, each with a path from a rank of the level above. It
    also returns None for nets with 8 or more forwarders, because `hop_paths` might leave a path out.
    """
    if net.nverts - net.nranks >= _MAX_PATH:
        return None
    search = _Search(net, limit)
    everything = frozenset(range(net.nranks)) - {root}
    try:
        return list(search.trees((root,), everything, (), depth))
    except _TooManyError:
        return None


class _TooManyError(Exception):
    """Raised if there are more trees than the limit."""


class _Search:
    def __init__(self, net: Net, limit: int) -> None:
        self.paths = hop_paths(net)
        self.limit = limit
        self.found = self.looked = 0

    def trees(self, above: Sequence[int], rest: frozenset[int], hops: Out, depth: int) -> Iterator[Out]:
        """Yields every tree that adds the ranks `rest` to `hops`, whose lowest level is `above`, in `depth` levels."""
        self.looked += 1
        if self.looked > self.limit * _PATIENCE:
            raise _TooManyError
        if not rest:
            self.found += 1
            if self.found > self.limit:
                raise _TooManyError
            yield hops
            return
        ways = {v: [(u, v, p) for u in above for p in self.paths.get((u, v), ())] for v in sorted(rest)}
        near = [v for v in ways if ways[v]]
        # The last level must contain all remaining ranks.
        sizes = range(1, len(near) + 1) if depth > 1 else (range(len(rest), len(rest) + 1) if depth else range(0))
        for size in sizes:
            for level in combinations(near, size):
                for choice in product(*(ways[v] for v in level)):
                    yield from self.trees(level, rest.difference(level), (*hops, *choice), depth - 1)
