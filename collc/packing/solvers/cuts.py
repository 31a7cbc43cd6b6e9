"""Computes upper bounds from cuts and partitions, exactly, by maximum flows.

The bounds hold on every graph. If every switch has equal capacity in and out, they are the optimum for broadcast and
reduce (Edmonds 1973) and for all_gather and reduce_scatter (ForestColl, section 4). Otherwise the optimum may be lower,
and prices prove it. All functions take the outward net, so reduce and reduce_scatter pass the reversed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collc.packing.solvers.maxflow import FlowNetwork
from collc.packing.solvers.network import Net


def broadcast_cut(net: Net, root: int, probes: Sequence[int] | None = None) -> tuple[Fraction, tuple[int, ...]]:
    """Returns (min over ranks v of maxflow(root, v) in GB/s, the side of such a minimum cut that contains the root).

    Args:
        root: the rank that sends the data.
        probes: the ranks v (default: all). With symmetry one rank of each orbit is enough.
    """
    caps, scale = net.integer_caps()
    flow = FlowNetwork(net.nverts, list(zip(net.tails, net.heads, strict=True)))
    others = [v for v in (range(net.nranks) if probes is None else probes) if v != root]
    values = {v: flow.maximum_flow(caps, root, v) for v in others}
    least = min(others, key=values.__getitem__)
    return Fraction(values[least], scale), tuple(sorted(flow.source_side(caps, root, least)))


def gather_cut(net: Net, probes: Sequence[int] | None = None) -> tuple[Fraction, tuple[int, ...]]:
    """Returns (min over sides S that lack a rank of N * leaving(S) / ranks in S, such a side), in GB/s.

    Newton's method on the rate.

    Args:
        probes: the ranks that S may lack (default: all). With symmetry one rank of each orbit is enough.
    """
    n = net.nranks
    caps, scale = net.integer_caps()
    # A super source feeds each rank.
    source = net.nverts
    flow = FlowNetwork(net.nverts + 1, [*zip(net.tails, net.heads, strict=True), *((source, v) for v in range(n))])
    side = set(range(net.nverts)) - {0}
    rate = _gather_ratio(net, caps, side)
    for missed in range(n) if probes is None else probes:
        while True:
            # S violates the rate iff leaving(S) < rate/N * |S|, that is, iff a flow below the rate reaches `missed`.
            # For a rate p/q all link capacities are multiplied by N*q and the source feeds p to each rank, so that all
            # numbers are integers.
            fed = [cap * n * rate.denominator for cap in caps] + [rate.numerator] * n
            if flow.maximum_flow(fed, source, missed) >= n * rate.numerator:
                break
            side = flow.source_side(fed, source, missed) - {source}
            smaller = _gather_ratio(net, caps, side)
            assert smaller < rate
            rate = smaller
    return rate / scale, tuple(sorted(side))


def _gather_ratio(net: Net, caps: Sequence[int], side: set[int]) -> Fraction:
    inside = sum(1 for v in range(net.nranks) if v in side)
    return Fraction(net.nranks * _leaving(net, caps, side), inside)


def listed_partition(net: Net, likely: list[set[int]] | None = None) -> tuple[Fraction, list[set[int]]]:
    """Returns `reduce_partition` without a search: the better one of `likely` and the partition into single ranks."""
    caps, scale = net.integer_caps()
    parts: list[set[int]] = [{v} for v in range(net.nranks)]
    rate = _partition_ratio(net, caps, parts)
    if likely is not None and len(likely) > 1 and _partition_ratio(net, caps, likely) < rate:
        rate, parts = _partition_ratio(net, caps, likely), likely
    return rate / scale, parts


def reduce_partition(net: Net, likely: list[set[int]] | None = None) -> tuple[Fraction, list[set[int]]]:
    """Returns (min over partitions of sum of leaving / (2(k-1)) in GB/s, such a partition).

    This is Nash-Williams' bound for all_reduce. Newton's method on the rate: each step minimizes the sum over the parts
    of leaving(S) - 2*rate by Dilworth truncation (one minimum cut per rank; Frank, Cunningham 1985).

    Args:
        likely: a partition to begin with, if it is better than the one into single ranks.
    """
    caps, scale = net.integer_caps()
    _, parts = listed_partition(net, likely)
    rate = _partition_ratio(net, caps, parts)
    while True:
        better = _truncation(net, caps, 2 * rate)
        if len(better) < 2:
            break
        smaller = _partition_ratio(net, caps, better)
        if smaller >= rate:
            break
        rate, parts = smaller, better
    return rate / scale, parts


def _partition_ratio(net: Net, caps: Sequence[int], parts: list[set[int]]) -> Fraction:
    place = [-1] * net.nverts
    for i, part in enumerate(parts):
        for v in part:
            place[v] = i
    out = sum(
        cap
        for tail, head, cap in zip(net.tails, net.heads, caps, strict=True)
        if place[tail] >= 0 and place[tail] != place[head]
    )
    return Fraction(out, 2 * (len(parts) - 1))


def _truncation(net: Net, caps: Sequence[int], offset: Fraction) -> list[set[int]]:
    """Returns disjoint sets that cover all ranks and minimize the sum of leaving(S) - offset.

    Greedy over the ranks: x(v) is the minimum of leaving(S) - offset - x(S - v) over all sets S that contain v and
    otherwise only earlier ranks and forwarders. The set that attains it is merged with the parts that it meets.
    """
    n = net.nranks
    unit = offset.denominator
    x: list[int] = []
    parts: list[set[int]] = []
    for v in range(n):
        arcs: list[tuple[int, int]] = []
        room: list[int] = []
        sink = net.nverts
        base = -offset.numerator
        for link, cap in enumerate(caps):
            head = net.heads[link]
            # A later rank cannot be in S, so it is on the other side.
            src, dst = net.tails[link], sink if v < head < n else head
            if not v < src < n:
                arcs.append((src, dst))
                room.append(cap * unit)
        for u in range(v):
            if x[u] > 0:
                arcs.append((v, u))  # leaving u out of S forgoes -x(u)
                room.append(x[u])
                base -= x[u]
            elif x[u] < 0:
                arcs.append((u, sink))
                room.append(-x[u])
        flow = FlowNetwork(net.nverts + 1, arcs)
        x.append(flow.maximum_flow(room, v, sink) + base)
        merged = flow.source_side(room, v, sink)
        rest = []
        for part in parts:
            if any(r < n and r in merged for r in part):
                merged |= part
            else:
                rest.append(part)
        parts = [*rest, merged]
    return _disjoint(parts, n)


def _disjoint(parts: list[set[int]], nranks: int) -> list[set[int]]:
    """Returns the parts with each forwarder only in the first part that has it. No two parts have a rank in common."""
    taken: set[int] = set()
    result = []
    for part in sorted(parts, key=lambda p: min(v for v in p if v < nranks)):
        result.append(part - taken)
        taken |= part
    return result


def _leaving(net: Net, caps: Sequence[int], side: set[int]) -> int:
    return sum(c for link, c in enumerate(caps) if net.tails[link] in side and net.heads[link] not in side)
