"""Finds the fewest trees by a mixed-integer program on HiGHS (Blink's ILP, section 3.2, but exact and with a proof).

For trees of one root: k arborescences with weights w_t, arcs x_ta and loads f_ta = w_t x_ta:

    sum of w >= rate;  per tree and rank: one arc in, loads in = w_t;  f <= bottleneck * x;
    per link: loads <= capacity;  level(v) >= level(u) + 1 along chosen arcs, level <= depth.

k grows from a lower bound until the program is feasible, then the depth shrinks until it is not. The limit is on nodes
and not on seconds, so the same input gives the same trees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from collc.packing.solvers.columns import Column
from collc.packing.solvers.dive import best_dive, dive_for_fewer_trees
from collc.packing.solvers.enumerate import hop_paths
from collc.packing.solvers.exact import Problem, Solution
from collc.packing.solvers.generate import Packing
from collc.packing.solvers.highs import INF, Outcome, Program
from collc.packing.solvers.network import Net, Out, Path

Arc = tuple[int, int, Path]

# The most nodes of branch and bound of one program.
_MAX_NODES = 4000
# Programs with more binary variables are not tried, because they need far more nodes.
_MAX_BINARIES = 500
# The most paths between two ranks that a program considers.
_MAX_PATHS = 4
# For collectives without a root: all trees are listed up to _LISTED trees and _LIST_RANKS ranks, for _DIVES dives.
_LISTED = 3000
_LIST_RANKS = 12
_DIVES = 60


@dataclass(frozen=True)
class FewestTrees:
    """A packing, and a remark about what is proven about it."""

    rate: Fraction
    weights: tuple[tuple[Column, Fraction], ...]
    remark: str


def fewest_trees(problem: Problem, solved: Solution, tolerance: Fraction) -> FewestTrees:
    """Returns a packing with the fewest trees that reach (1 - tolerance) of the solved rate, then the least depth.

    For one root, this is proven if the program finishes. For other collectives it is the best of several dives at the
    solved rate.
    """
    target = solved.rate * (1 - tolerance)
    if problem.root is None or problem.collective.both_phases:
        return _by_diving(problem, solved)
    least = least_trees(problem, target)
    arcs = _arcs(problem.net)
    best: tuple[Column, ...] | None = None
    count_proven = True
    count = least
    upper = len(solved.weights)
    while count < upper and best is None:
        if count * len(arcs) > _MAX_BINARIES:
            count_proven = False
            break
        status, best = _program(problem, arcs, count, target, problem.net.nranks - 1)
        count_proven = count_proven and (status != "limit")
        count += best is None
    if best is None:
        return FewestTrees(solved.rate, solved.weights, _remark(len(solved.weights), count_proven, None))
    depth_proven, best = _shallower(problem, arcs, best, target)
    generator = problem.generator()
    generator.restrict(best)
    found = generator.exact()
    if found is None or found.rate < target:
        return FewestTrees(solved.rate, solved.weights, _remark(len(solved.weights), False, None))
    return FewestTrees(found.rate, found.weights, _remark(len(found.weights), count_proven, depth_proven))


def _remark(count: int, proven: bool, depth_proven: bool | None) -> str:
    text = f"{count} tree{'s' if count != 1 else ''}: {'proven' if proven else 'best found'}"
    if depth_proven is not None:
        text += f"; their depth: {'proven' if depth_proven else 'best found'}"
    return text


def least_trees(problem: Problem, target: Fraction) -> int:
    """Returns a lower bound on the number of trees of one root.

    Each tree enters every rank once, so the k widest links into a rank must carry the rate.
    """
    net = problem.net
    most = 1
    for v in range(net.nranks):
        if v == problem.root:
            continue
        caps = sorted((net.caps[x] for x in range(net.nlinks) if net.heads[x] == v), reverse=True)
        # Several trees may enter by one link, but no tree is heavier than the link that it enters by.
        total, count = Fraction(0), 0
        while total < target and count < len(caps):
            total, count = total + caps[count], count + 1
        most = max(most, count)
    return most


def _by_diving(problem: Problem, solved: Solution) -> FewestTrees:
    depth = max(c.depth() for c, _ in solved.weights)
    best = Packing(solved.rate, solved.weights, None)
    for limit in (depth, depth + 1, None):
        generator = problem.generator()
        deepest = problem.net.nranks - 1 if limit is None else limit
        every = generator.oracle.all_columns(deepest, _LISTED) if problem.net.nranks <= _LIST_RANKS else None
        if every is not None:
            generator.fill(every)
            best = best_dive(generator, best, _DIVES, 4, seed=1)
            continue
        for rounds, choices in ((6, 1), (4, 3), (2, 6)):
            generator = problem.generator()
            generator.seed(limit)
            generator.add(c for c, _ in solved.weights)
            generator.improve(limit, solved.rate)
            best = dive_for_fewer_trees(generator, best, limit, rounds, choices)
    count = len(best.weights)
    least = _least_pairs(problem, best.rate)
    if problem.collective.per_rank:
        least = _least_of_all(problem, best.rate)
    remark = _remark(count, count == least, None)
    return FewestTrees(best.rate, best.weights, remark if count == least else f"{remark}, {least} at least")


def _least_of_all(problem: Problem, rate: Fraction) -> int:
    """Returns a lower bound on the number of trees for all_gather.

    If every link into a rank is full, a link of capacity c carries at least c / (rate/N) trees, rounded up, because no
    tree is heavier than rate/N. The rank itself is the root of one more tree.
    """
    net, share = problem.net, rate / problem.net.nranks
    most = net.nranks
    for v in range(net.nranks):
        caps = [net.caps[x] for x in range(net.nlinks) if net.heads[x] == v]
        if sum(caps) == share * (net.nranks - 1):
            most = max(most, 1 + sum(math.ceil(c / share) for c in caps))
    return most


def _least_pairs(problem: Problem, rate: Fraction) -> int:
    """Returns a lower bound on the number of pairs for all_reduce: none is heavier than the widest spanning pair."""
    net, turned = problem.net, problem.net.reversed()
    return math.ceil(rate / max(min(_widest(net, r), _widest(turned, r)) for r in range(net.nranks)))


def _widest(net: Net, root: int) -> Fraction:
    """Returns the largest capacity such that links of at least this capacity lead from `root` to every rank."""
    low = Fraction(0)
    for width in sorted(set(net.caps)):
        seen, stack = {root}, [root]
        while stack:
            heads = [net.heads[x] for x in net.out[stack.pop()] if net.caps[x] >= width]
            stack += [v for v in dict.fromkeys(heads) if v not in seen]
            seen.update(heads)
        if not all(v in seen for v in range(net.nranks)):
            break
        low = width
    return low


def _shallower(
    problem: Problem, arcs: Sequence[Arc], best: tuple[Column, ...], target: Fraction
) -> tuple[bool, tuple[Column, ...]]:
    """Lowers the depth step by step and returns (whether a lower depth is proven impossible, the columns)."""
    while (depth := max(c.depth() for c in best)) > 1:
        status, better = _program(problem, arcs, len(best), target, depth - 1)
        if better is None:
            return status == "infeasible", best
        best = better
    return True, best


def _arcs(net: Net) -> list[Arc]:
    """Returns all hops between ranks, with up to _MAX_PATHS simple paths through forwarders each, widest first."""
    arcs = []
    for (u, v), paths in sorted(hop_paths(net).items()):
        paths.sort(key=lambda p: (-min(net.caps[x] for x in p), len(p), p))
        arcs += [(u, v, p) for p in paths[:_MAX_PATHS]]
    return arcs


def _program(
    problem: Problem, arcs: Sequence[Arc], count: int, target: Fraction, depth: int
) -> tuple[str, tuple[Column, ...] | None]:
    """Solves the program for `count` trees and returns ("found" | "infeasible" | "limit", the columns if found)."""
    net, root = problem.net, problem.root
    assert root is not None
    unit = float(target)
    p = Program(nodes=_MAX_NODES)
    width = [float(min(net.caps[x] for x in path)) / unit for _, _, path in arcs]
    weight = [p.column(0.0, 0.0, 1.0) for _ in range(count)]
    chosen = [[p.column(0.0, 0, 0 if v == root else 1, integer=True) for _, v, _ in arcs] for _ in range(count)]
    load = [[p.column(0.0, 0, min(1.0, w)) for w in width] for _ in range(count)]
    level = [[p.column(0.0, 0, 0 if v == root else depth) for v in range(net.nranks)] for _ in range(count)]
    p.row(1.0, INF, dict.fromkeys(weight, 1.0))
    for a, b in pairwise(weight):
        p.row(0.0, INF, {a: 1.0, b: -1.0})  # heavier trees first, because their order has no meaning
    on_link: dict[int, list[int]] = {}
    for i, (_, _, path) in enumerate(arcs):
        for link in path:
            on_link.setdefault(link, []).append(i)
    for link, members in on_link.items():
        p.row(-INF, float(net.caps[link]) / unit, {load[t][i]: 1.0 for t in range(count) for i in members})
    for t in range(count):
        for v in range(net.nranks):
            if v != root:
                into = [i for i, (_, head, _) in enumerate(arcs) if head == v]
                p.row(1.0, 1.0, {chosen[t][i]: 1.0 for i in into})
                p.row(0.0, 0.0, {weight[t]: -1.0} | {load[t][i]: 1.0 for i in into})
        for i, (u, v, _) in enumerate(arcs):
            if v != root:
                p.row(-INF, 0.0, {load[t][i]: 1.0, chosen[t][i]: -min(1.0, width[i])})
                far = float(depth + 1)
                p.row(1.0 - far, INF, {level[t][v]: 1.0, level[t][u]: -1.0, chosen[t][i]: -far})
    outcome = p.solve()
    if outcome is not Outcome.OPTIMAL:
        return outcome.value, None
    values = p.values()
    columns = []
    for t in range(count):
        if values[weight[t]] > 1e-9:
            taken = [arc for i, arc in enumerate(arcs) if values[chosen[t][i]] > 0.5]
            columns.append(Column(0, root, _ordered(taken, root)))
    return "found", tuple(dict.fromkeys(columns))


def _ordered(taken: Sequence[Arc], root: int) -> Out:
    below: dict[int, list[Arc]] = {}
    for arc in taken:
        below.setdefault(arc[0], []).append(arc)
    hops: list[Arc] = []
    queue = [root]
    for u in queue:
        for arc in below.get(u, ()):
            hops.append(arc)
            queue.append(arc[1])
    return tuple(hops)
