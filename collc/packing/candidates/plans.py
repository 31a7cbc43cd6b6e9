"""Makes the conventional plans of other libraries: rings, double binary trees, one-hop trees, hierarchical plans.

They are candidates for message sizes at which few hops or a plain order matter more than the best rate, and baselines
for comparisons. Each is an ordinary `Plan` without a certificate and bound, so the same lowering, verifier and
simulator process it. Hops follow shortest paths through switches, never through a rank.

Sources: ring: Patarasuk and Yuan 2009, as used by Baidu 2017; double binary tree: Sanders, Speck and Traeff 2009, as
used by NCCL 2.4; one-hop trees: Blink (Wang et al., MLSys 2020), on DGX-2. Several servers: `servers`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.options import CUDA
from collc.packing.candidates.paths import Edge, Paths, along, along_ring, phases, shortest_paths
from collc.packing.candidates.ring_search import disjoint_rings
from collc.packing.candidates.servers import hierarchical_rings, three_phases
from collc.packing.model import CANDIDATES, EVERYWHERE, RINGS, Plan, PlanType, Tree
from collc.topology.model import PlanGraph

# The maximum number of thread blocks of one program that a GPU runs at once, together with the user's kernels.
MOST_CHANNELS = CUDA.max_channels
# Plans for several servers, joined from trees of each server.
BY_SERVERS = ("three-phase", "hierarchical-rings")
# Interleaved trees per block: enough for different orders, few enough to fill pipelines fast.
TURNS = 3
PARTS_IN_TURNS = TURNS * MOST_CHANNELS
# Parts of one ring have up to _SIZES different sizes, each half a percent (_APART of _MEAN units) above the previous
# one, so that blocks do not keep step. Below _DIFFER_FROM parts all are equal: such plans are NCCL's or for small
# calls.
_SIZES, _MEAN, _APART = 9, 400, 2
_DIFFER_FROM = 3 * MOST_CHANNELS // 4 + 1
# Interleaved rings per block: while a chunk of one part is on its way, the block moves a chunk of the other.
RING_TURNS = 2


def candidate(
    graph: PlanGraph, collective: Collective, root: int | None, kind: str, paths: Paths | None = None
) -> Plan:
    """Returns the plan of one type.

    Args:
        root: the root of a rooted collective (default 0), else None.
        kind: a plan type of KINDS.
        paths: the graph's `shortest_paths`, if the caller has them.

    Raises:
        PackingError: the graph has no such plan (no ring closes, or some pair has no direct path), or plans of this
        type
            do not serve the collective.
    """
    if not collective.uses_trees:
        raise PackingError(f"{collective.value} moves along flows; {kind} plans are for tree collectives")
    if graph.nranks < 2:
        raise PackingError(f"a {kind} plan needs two GPUs or more")
    root = (0 if root is None else root) if collective.rooted else None
    trees = _MAKERS[PlanType(kind)](graph, shortest_paths(graph) if paths is None else paths, collective, root)
    return _scale_to_links(graph, collective, root, PlanType(kind), trees)


def candidates(graph: PlanGraph, collective: Collective, root: int | None = None) -> dict[str, Plan]:
    """Returns the plan of every type that this graph has, without plans whose trees equal an earlier plan's."""
    found: dict[str, Plan] = {}
    for kind in KINDS:
        try:
            plan = candidate(graph, collective, root, kind)
        except PackingError:
            continue
        if all(plan.trees != other.trees for other in found.values()):
            found[kind] = plan
    return found


def spread(plan: Plan, channels: int) -> Plan:
    """Splits trees into copies until there are `channels` of them, heavier trees into more copies.

    A copy becomes a channel, that is, a thread block. More blocks move more data at once, and each tree gets blocks in
    proportion to its weight. Copies of a tree are equal, except for many copies of rings (`_parts`). A plan with more
    trees than `channels` is returned unchanged. In a ring plan, every tree gets the same number of copies. Above
    `MOST_CHANNELS`, copies are interleaved in a block (`collc.lowering.take_turns`).
    """
    if not plan.trees:
        return plan
    count = [1] * len(plan.trees)
    if is_rings(plan):
        each = max(1, channels // rings_of(plan))
        count = [each] * len(plan.trees)
    else:
        while sum(count) < channels:
            heaviest = max(range(len(count)), key=lambda i: (plan.trees[i].weight / count[i], -i))
            count[heaviest] += 1
    trees = [
        replace(tree, weight=tree.weight * part)
        for tree, n in zip(plan.trees, count, strict=True)
        for part in _parts(plan, n)
    ]
    return replace(plan, trees=tuple(trees))


def _parts(plan: Plan, number: int) -> list[Fraction]:
    """Returns the fraction of a tree that each of its copies carries.

    Blocks with equal steps start each step together, and the link is idle while they are between two steps. All blocks
    of a ring share its links. So some of their parts are a little larger than others. Larger parts end a little later,
    when the link has more bandwidth for them.
    """
    if not is_rings(plan) or number * rings_of(plan) < _DIFFER_FROM:
        return [Fraction(1, number)] * number
    sizes = min(number, _SIZES)
    units = [_MEAN + _APART * (at * sizes // number) - (sizes - 1) * _APART // 2 for at in range(number)]
    return [Fraction(unit, sum(units)) for unit in units]


def best_rings(kinds: Iterable[str]) -> str | None:
    """Returns the fastest plan type of rings among plan types, or None."""
    return max((kind for kind in kinds if kind in RINGS), key=RINGS.index, default=None)


def least_equal_parts(plan: Plan) -> int:
    """Returns the least number of parts for which `spread` splits all trees into parts of equal weight."""
    weights = [tree.weight for tree in plan.trees]
    unit = Fraction(math.gcd(*(w.numerator for w in weights)), math.lcm(*(w.denominator for w in weights)))
    return int(sum(weights, Fraction(0)) / unit)


def rings_of(plan: Plan) -> int:
    """Returns the number of rings of a ring plan. A channel serves the trees of all roots of one ring."""
    return sum(1 for tree in plan.trees if tree.root == plan.trees[0].root)


def channels_of(plan: Plan) -> int:
    """Returns the number of channels of a spread plan: one per ring or per tree, fewer if copies are interleaved."""
    if is_rings(plan):
        return -(-rings_of(plan) // RING_TURNS) if in_rounds(plan) else rings_of(plan)
    return min(len(plan.trees), MOST_CHANNELS) if has_copies(plan) else len(plan.trees)


def is_rings(plan: Plan) -> bool:
    """Returns whether a channel serves one tree of every root, as in ring plans."""
    return plan.kind in _CHANNEL_PER_RING


def in_rounds(plan: Plan) -> bool:
    """Returns whether two rings are interleaved in each block, with one FIFO per hop for all roots of a ring.

    `collc.lowering.share_hops` makes such programs. They need more rings than `MOST_CHANNELS`.
    """
    return is_rings(plan) and plan.collective.per_rank and rings_of(plan) > MOST_CHANNELS


def has_copies(plan: Plan) -> bool:
    """Returns whether trees were split into equal copies, which may be interleaved.

    A plan without copies, such as one with a tree per rank of a large machine, is often symmetric already and is kept.
    """
    return not is_rings(plan) and any(a == b for a, b in itertools.pairwise(plan.trees))


def _tree(paths: Paths, collective: Collective, root: int, up: Iterable[Edge], down: Iterable[Edge]) -> Tree:
    """Returns a tree of weight 1 with the collective's phases, from `up` (child, parent) and `down` (parent, child)."""
    return Tree(root, Fraction(1), *phases(paths, collective, up, down))


def _ring_trees(
    orders: Sequence[Sequence[int]], paths: Paths, collective: Collective, root: int | None
) -> tuple[Tree, ...]:
    """Returns a tree for each root and ring: along the ring into the root, and from the root on to the previous rank.

    Trees are ordered by root, then by ring. Dealt round robin onto as many channels as there are rings, each ring gets
    one channel with all its roots in turn.
    """
    trees = []
    n = len(orders[0])
    for target in range(n) if root is None else [root]:
        for order in orders:
            at = order.index(target)
            trees.append(_tree(paths, collective, target, *along_ring([*order[at:], *order[:at]])))
    return tuple(trees)


def _one_ring(graph: PlanGraph, paths: Paths, collective: Collective, root: int | None) -> tuple[Tree, ...]:
    return _ring_trees(disjoint_rings(graph, paths, limit=1), paths, collective, root)


def _rings(graph: PlanGraph, paths: Paths, collective: Collective, root: int | None) -> tuple[Tree, ...]:
    return _ring_trees(disjoint_rings(graph, paths), paths, collective, root)


def _chain(graph: PlanGraph, paths: Paths, collective: Collective, root: int | None) -> tuple[Tree, ...]:
    """Returns NCCL's Tree inside one server: for every ring a chain in its order, from the root or the first rank."""
    trees = []
    for order in disjoint_rings(graph, paths):
        at = order.index(root) if root is not None else 0
        turned = [*order[at:], *order[:at]]
        trees.append(_tree(paths, collective, turned[0], along(turned[::-1]), along(turned)))
    if collective.per_rank:
        raise PackingError(f"a chain has one root, and {collective.value} has one per rank")
    return tuple(trees)


def _double_binary(graph: PlanGraph, paths: Paths, collective: Collective, root: int | None) -> tuple[Tree, ...]:
    """Returns two binary trees with half of the data each. An inner rank of one tree is a leaf of the other."""
    if collective.per_rank:
        raise PackingError(f"two trees cannot serve {collective.value}, whose blocks have a root each")
    names = [rank for rank in graph.ranks if rank != root]
    n = len(names)
    first = [_parent(i, n) for i in range(n)]
    if n % 2:
        second = [None if (p := first[(i - 1) % n]) is None else (p + 1) % n for i in range(n)]
    else:
        second = [None if (p := first[n - 1 - i]) is None else n - 1 - p for i in range(n)]
    trees = []
    for parents in (first, second):
        top = next(i for i in range(n) if parents[i] is None)
        down = [] if root is None else [(root, names[top])]
        # Breadth first, so that a parent precedes its children.
        queue = deque([top])
        while queue:
            at = queue.popleft()
            children = [i for i in range(n) if parents[i] == at]
            down += [(names[at], names[i]) for i in children]
            queue += children
        top_rank = names[top] if root is None else root
        trees.append(_tree(paths, collective, top_rank, [(b, a) for a, b in reversed(down)], down))
    return tuple(trees)


def _parent(i: int, n: int) -> int | None:
    """Returns the parent of i in the in-order binary tree over 0..n-1 whose root 0 has one child; None for 0."""
    if i == 0:
        return None
    low = i & -i
    up = (i ^ low) | (low << 1)
    return up if up < n else i ^ low


def _one_hop(graph: PlanGraph, paths: Paths, collective: Collective, root: int | None) -> tuple[Tree, ...]:
    """Returns stars: every root exchanges data with every other rank directly."""
    trees = []
    for center in graph.ranks if root is None else [root]:
        others = [rank for rank in graph.ranks if rank != center]
        # The order is rotated, so that roots begin with different children.
        others = [rank for rank in others if rank > center] + [rank for rank in others if rank < center]
        trees.append(_tree(paths, collective, center, [(r, center) for r in others], [(center, r) for r in others]))
    return tuple(trees)


_Maker = Callable[[PlanGraph, Paths, Collective, "int | None"], tuple[Tree, ...]]
_MAKERS: dict[PlanType, _Maker] = {
    PlanType.RING: _one_ring,
    PlanType.RINGS: _rings,
    PlanType.CHAIN: _chain,
    PlanType.DOUBLE_BINARY: _double_binary,
    PlanType.ONE_HOP: _one_hop,
    PlanType.THREE_PHASE: three_phases,
    PlanType.HIERARCHICAL_RINGS: hierarchical_rings,
}
KINDS = tuple(_MAKERS)
assert KINDS == CANDIDATES
# Plan types with one channel for a tree of every root.
_CHANNEL_PER_RING = (*RINGS, EVERYWHERE)


def everywhere(graph: PlanGraph, one_hop: Plan) -> Plan:
    """Returns the plan of the program that `reduce_everywhere` makes from the one-hop plan of an all_reduce.

    Each rank has a tree into it that carries all data, so the weights do not add up to the rate. The plan is simulated,
    but not stored in a library.

    Raises:
        PackingError: the collective is another one, or there are several servers.
    """
    if one_hop.collective is not Collective.ALL_REDUCE:
        raise PackingError(f"{one_hop.collective.value} is no all_reduce")
    if graph.nservers > 1:
        raise PackingError("the inputs of several servers are not in one memory")
    hops = [hop for tree in one_hop.trees for hop in tree.reduce]
    load = Counter(link for hop in hops for link in hop.links)
    rate = min(graph.links[link].gbps / number for link, number in load.items())
    trees = tuple(Tree(tree.root, rate, tree.reduce, ()) for tree in one_hop.trees)
    return replace(one_hop, kind=EVERYWHERE, rate=rate, trees=trees, bound=None, certificate=None, optimal=False)


def with_proof(plan: Plan, packed: Plan) -> Plan:
    """Returns a candidate with the bound and the certificate of the packed plan of the same problem.

    A certificate bounds every plan of the same graph, collective and root, so it shows the gap of this one.
    """
    assert (plan.collective, plan.root) == (packed.collective, packed.root)
    return replace(
        plan, bound=packed.bound, certificate=packed.certificate, optimal=plan.rate == packed.bound is not None
    )


def _scale_to_links(
    graph: PlanGraph, collective: Collective, root: int | None, kind: PlanType, trees: tuple[Tree, ...]
) -> Plan:
    """Returns the plan of these trees at the largest rate that the links can carry. Proportions of weights stay."""
    load: dict[int, Fraction] = defaultdict(Fraction)
    for tree in trees:
        for hop in (*tree.reduce, *tree.broadcast):
            for link in hop.links:
                load[link] += tree.weight
    factor = min(graph.links[link].gbps / weight for link, weight in load.items())
    scaled = tuple(replace(tree, weight=tree.weight * factor) for tree in trees)
    rate = sum((tree.weight for tree in scaled), Fraction(0))
    return Plan(collective, root, kind, None, rate, None, False, None, trees=scaled)
