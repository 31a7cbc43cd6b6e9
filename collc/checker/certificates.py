"""Computes the bound that a certificate proves, only from the certificate and the graph, in exact arithmetic.

Solvers have their own cheapest paths and arborescences. The checker does not use them, so it has others here.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Iterable, Sequence
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import CertificateError
from collc.limits import common_denominator, spend
from collc.packing.model import Certificate, Cut, Partition, Prices
from collc.topology.model import PlanGraph

# Exact integers, or inf if there is no path.
Costs = list[list[float]]


def certificate_bound(
    graph: PlanGraph, collective: Collective, root: int | None, certificate: Certificate, where: str = "certificate"
) -> Fraction:
    """Returns the rate in GB/s that no plan can exceed, proven by a cut, a partition or prices.

    Raises:
        CertificateError: the certificate is malformed, or proves nothing for this collective.
    """
    if isinstance(certificate, Cut):
        return _cut_bound(graph, collective, root, certificate, where)
    if isinstance(certificate, Partition):
        return _partition_bound(graph, collective, certificate, where)
    return _prices_bound(graph, collective, root, certificate, where)


def _vertex_set(graph: PlanGraph, vertices: Sequence[int], where: str) -> set[int]:
    for v in vertices:
        if not 0 <= v < len(graph.vertices):
            raise CertificateError(f"no vertex {v} in this graph", where=where)
    if len(set(vertices)) != len(vertices):
        twice = next(v for i, v in enumerate(vertices) if v in vertices[:i])
        raise CertificateError(f"vertex {graph.vertices[twice].name} is listed twice", where=where)
    return set(vertices)


def _sum(rates: Iterable[Fraction]) -> Fraction:
    numerators, scale = _integers(list(rates))
    return Fraction(sum(numerators), scale)


def _integers(values: Sequence[Fraction]) -> tuple[list[int], int]:
    """Returns the numerators over the common denominator, and this denominator."""
    scale = common_denominator(values)
    return [value.numerator * (scale // value.denominator) for value in values], scale


def _cut_bound(graph: PlanGraph, collective: Collective, root: int | None, cut: Cut, where: str) -> Fraction:
    side = _vertex_set(graph, cut.side, where)
    inside = sum(1 for r in graph.ranks if r in side)
    if not 0 < inside < graph.nranks:
        raise CertificateError(f"a cut contains some but not all GPUs, this side contains {inside}", where=where)
    leaving = _sum(x.gbps for x in graph.links if x.src in side and x.dst not in side)
    entering = _sum(x.gbps for x in graph.links if x.dst in side and x.src not in side)
    if not collective.uses_trees:
        raise CertificateError(f"a cut proves nothing for {collective.value}; it takes prices", where=where)
    if collective.both_phases:
        return min(leaving, entering)
    if root is not None and root not in side:
        raise CertificateError(f"the side does not contain the root {graph.vertices[root].name}", where=where)
    crossing = entering if collective.inward else leaving
    return graph.nranks * crossing / inside if collective.per_rank else crossing


def _partition_bound(graph: PlanGraph, collective: Collective, partition: Partition, where: str) -> Fraction:
    if not collective.both_phases:
        raise CertificateError(f"a partition proves nothing for {collective.value}, only for all_reduce", where=where)
    k = len(partition.parts)
    if k < 2:
        raise CertificateError("a partition has two parts or more", where=where)
    place = [-1] * len(graph.vertices)
    for i, part in enumerate(partition.parts):
        at = f"{where}.parts[{i}]"
        side = _vertex_set(graph, part, at)
        if not any(v < graph.nranks for v in side):
            raise CertificateError("this part contains no GPU", where=at)
        for v in sorted(side):
            if place[v] >= 0:
                raise CertificateError(f"{graph.vertices[v].name} is in two parts", where=at)
            place[v] = i
    for r in graph.ranks:
        if place[r] < 0:
            raise CertificateError(f"{graph.vertices[r].name} is in no part", where=where)
    crossing = [x for x in graph.links if place[x.src] != place[x.dst]]
    out = _sum(x.gbps for x in crossing if place[x.src] >= 0)
    into = _sum(x.gbps for x in crossing if place[x.dst] >= 0)
    return min(out, into) / (2 * (k - 1))


def _prices_bound(graph: PlanGraph, collective: Collective, root: int | None, prices: Prices, where: str) -> Fraction:
    price = [Fraction(0)] * len(graph.links)
    if len({link for link, _ in prices.prices}) != len(prices.prices):
        raise CertificateError("a link has two prices", where=where)
    for link, value in prices.prices:
        if not 0 <= link < len(graph.links):
            raise CertificateError(f"no link {link} in this graph", where=where)
        if value < 0:
            raise CertificateError(f"link {link} has the negative price {value}", where=where)
        price[link] = value
    scaled, _ = _integers(price)
    unit = _unit_cost(graph, scaled, collective, root)
    if unit == math.inf:
        raise CertificateError("some GPU cannot be reached at all", where=where)
    if unit == 0:
        raise CertificateError("the prices let one unit be served for free, so they prove nothing", where=where)
    speeds, speed_scale = _integers([link.gbps for link in graph.links])
    return Fraction(sum(map(operator.mul, speeds, scaled)), speed_scale) / Fraction(unit)


def _unit_cost(graph: PlanGraph, price: list[int], collective: Collective, root: int | None) -> float:
    """Returns the least cost of one unit under the prices, an integer or a Fraction; inf if it cannot be served."""
    ranks, n = graph.ranks, graph.nranks
    roots = ranks if root is None else [root]
    if not collective.uses_trees:
        # A gather has the paths of a scatter in the reverse direction.
        found = _costs(graph, price, collective.inward, roots, relays=True)
        if collective is Collective.SENDRECV:
            return sum(found[v][(v + 1) % n] for v in ranks)
        return _shared(sum(row[v] for r, row in zip(roots, found, strict=True) for v in ranks if v != r), n)
    cost, place = _merged(_costs(graph, price, collective.inward, ranks))
    tree = {r: _arborescence(cost, r) for r in {place[r] for r in roots}}
    if collective.both_phases:
        cost, other = _merged(_costs(graph, price, True, ranks))
        back = {r: _arborescence(cost, r) for r in {other[r] for r in roots}}
        return min(tree[place[r]] + back[other[r]] for r in roots)
    return _shared(sum(tree[place[r]] for r in roots), len(roots))


def _merged(cost: Costs) -> tuple[Costs, list[int]]:
    """Merges vertices that reach each other at no cost. Returns the new costs, and the new number of each vertex.

    A path to one of the merged vertices reaches all of them at no further cost, so the cost of a cheapest arborescence
    does not change.
    """
    place = [-1] * len(cost)
    members: list[int] = []
    for start in range(len(cost)):
        if place[start] >= 0:
            continue
        place[start] = len(members)
        stack = [start]
        while stack:
            u = stack.pop()
            for v, value in enumerate(cost[u]):
                if value == 0 and place[v] < 0 and cost[v][u] == 0:
                    place[v] = len(members)
                    stack.append(v)
        members.append(start)
    if len(members) == len(cost):
        return cost, place
    spend(2 * len(cost) ** 2)
    found: Costs = [[math.inf] * len(members) for _ in members]
    for u, row in enumerate(cost):
        into = found[place[u]]
        for v, value in enumerate(row):
            if value < into[place[v]] and place[u] != place[v]:
                into[place[v]] = value
    return found, place


def _shared(total: float, parts: int) -> float:
    """Returns the exact quotient of a sum, or inf."""
    return total if total == math.inf else Fraction(total) / parts  # type: ignore[return-value]


def _costs(graph: PlanGraph, price: list[int], reverse: bool, sources: Iterable[int], relays: bool = False) -> Costs:
    """Returns for each source the cost of the cheapest path to each rank, by Dijkstra's search.

    The cost is inf for ranks that no path reaches, and for the source. This is our own code because prices are integers
    beyond igraph's doubles, and because steps count against the checker's budget.

    Args:
        reverse: paths run against the links.
        relays: paths may pass through other ranks.
    """
    out: list[list[tuple[int, int]]] = [[] for _ in graph.vertices]
    for link in graph.links:
        src, dst = (link.dst, link.src) if reverse else (link.src, link.dst)
        out[src].append((dst, price[link.id]))
    found: Costs = []
    for source in sources:
        best: list[float] = [math.inf] * len(graph.vertices)
        best[source] = 0
        heap = [(0, source)]
        spend(8 * len(graph.links) + 4 * len(graph.vertices))
        while heap:
            cost, vertex = heapq.heappop(heap)
            if cost > best[vertex] or (vertex < graph.nranks and vertex != source and not relays):
                continue
            for head, extra in out[vertex]:
                if cost + extra < best[head]:
                    best[head] = cost + extra
                    heapq.heappush(heap, (cost + extra, head))
        best[source] = math.inf
        found.append(best[: graph.nranks])
    return found


def _arborescence(cost: Costs, root: int) -> float:
    """Returns the cost of a cheapest spanning out-arborescence (Chu and Liu 1965, Edmonds 1967); inf if none spans.

    Takes O(n^3).
    """
    total: float = 0
    while True:
        columns = list(zip(*cost, strict=True))
        low = [min(column) for column in columns]
        low[root] = 0
        total += sum(low)
        spend(2 * len(cost) ** 2)
        if total == math.inf:
            return total
        parent = [root if v == root else column.index(low[v]) for v, column in enumerate(columns)]
        group, count = _contracted(parent, root)
        if count == len(cost):
            return total
        smaller: Costs = [[math.inf] * count for _ in range(count)]
        for u, row in enumerate(cost):
            into = smaller[group[u]]
            for v, value in enumerate(row):
                if group[u] != group[v] and value - low[v] < into[group[v]]:
                    into[group[v]] = value - low[v]
        cost, root = smaller, group[root]


def _contracted(parent: list[int], root: int) -> tuple[list[int], int]:
    """Returns new numbers of the vertices, equal for the vertices of a cycle of parents, and how many there are."""
    group, mark, count = [-1] * len(parent), [-1] * len(parent), 0
    mark[root] = root
    for start in range(len(parent)):
        v = start
        while mark[v] < 0:
            mark[v] = start
            v = parent[v]
        if mark[v] == start and v != root and group[v] < 0:
            while group[v] < 0:
                group[v] = count
                v = parent[v]
            count += 1
    for v in range(len(parent)):
        if group[v] < 0:
            group[v] = count
            count += 1
    return group, count
