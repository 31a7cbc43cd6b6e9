"""What a certificate proves, recomputed from the certificate and the graph alone, in exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import CertificateError
from collc.packing.arborescence import arborescence_cost, cheapest_arborescence
from collc.packing.model import Certificate, Cut, Partition, Prices
from collc.packing.network import Net, cheapest_paths, exact_distances
from collc.topology.model import PlanGraph


def certificate_bound(
    graph: PlanGraph, collective: Collective, root: int | None, certificate: Certificate, where: str = "certificate"
) -> Fraction:
    """The rate in GB/s that no plan can exceed, by DESIGN's three kinds of proof.

    Raises CertificateError if the certificate is malformed or proves nothing for this collective.
    """
    if isinstance(certificate, Cut):
        return _cut_bound(graph, collective, root, certificate, where)
    if isinstance(certificate, Partition):
        return _partition_bound(graph, collective, certificate, where)
    return _prices_bound(graph, collective, root, certificate, where)


def leaving(graph: PlanGraph, side: set[int]) -> Fraction:
    """The capacity of the links from `side` to the rest."""
    return sum((x.gbps for x in graph.links if x.src in side and x.dst not in side), Fraction(0))


def entering(graph: PlanGraph, side: set[int]) -> Fraction:
    """The capacity of the links from the rest to `side`."""
    return sum((x.gbps for x in graph.links if x.dst in side and x.src not in side), Fraction(0))


def _vertex_set(graph: PlanGraph, vertices: Iterable[int], where: str) -> set[int]:
    seen: set[int] = set()
    for v in vertices:
        if not 0 <= v < len(graph.vertices):
            raise CertificateError(f"no vertex {v} in this graph", where=where)
        if v in seen:
            raise CertificateError(f"vertex {graph.vertices[v].name} is listed twice", where=where)
        seen.add(v)
    return seen


def _cut_bound(graph: PlanGraph, collective: Collective, root: int | None, cut: Cut, where: str) -> Fraction:
    side = _vertex_set(graph, cut.side, where)
    inside = sum(1 for r in graph.ranks if r in side)
    if not 0 < inside < graph.nranks:
        raise CertificateError(f"a cut holds some but not all GPUs, this side holds {inside}", where=where)
    if not collective.uses_trees:
        raise CertificateError(f"a cut proves nothing for {collective.value}; it takes prices", where=where)
    if collective.both_phases:
        return min(leaving(graph, side), entering(graph, side))
    if root is not None and root not in side:
        raise CertificateError(f"the side does not hold the root {graph.vertices[root].name}", where=where)
    crossing = entering(graph, side) if collective.inward else leaving(graph, side)
    return graph.nranks * crossing / inside if collective.per_rank else crossing


def _partition_bound(graph: PlanGraph, collective: Collective, partition: Partition, where: str) -> Fraction:
    if not collective.both_phases:
        raise CertificateError(f"a partition proves nothing for {collective.value}, only for all_reduce", where=where)
    k = len(partition.parts)
    if k < 2:
        raise CertificateError("a partition has two parts or more", where=where)
    covered: set[int] = set()
    place = [-1] * len(graph.vertices)
    for i, part in enumerate(partition.parts):
        side = _vertex_set(graph, part, f"{where}.parts[{i}]")
        twice = sorted(side & covered)
        if twice:
            raise CertificateError(f"{graph.vertices[twice[0]].name} is in two parts", where=f"{where}.parts[{i}]")
        if not any(r in side for r in graph.ranks):
            raise CertificateError("this part holds no GPU", where=f"{where}.parts[{i}]")
        covered |= side
        for v in side:
            place[v] = i
    for r in graph.ranks:
        if r not in covered:
            raise CertificateError(f"{graph.vertices[r].name} is in no part", where=where)
    crossing = [x for x in graph.links if place[x.src] != place[x.dst]]
    out = sum((x.gbps for x in crossing if place[x.src] >= 0), Fraction(0))
    into = sum((x.gbps for x in crossing if place[x.dst] >= 0), Fraction(0))
    return min(out, into) / (2 * (k - 1))


def _prices_bound(graph: PlanGraph, collective: Collective, root: int | None, prices: Prices, where: str) -> Fraction:
    price = [Fraction(0)] * len(graph.links)
    seen: set[int] = set()
    for link, value in prices.prices:
        if not 0 <= link < len(graph.links):
            raise CertificateError(f"no link {link} in this graph", where=where)
        if link in seen:
            raise CertificateError(f"link {link} has two prices", where=where)
        if value < 0:
            raise CertificateError(f"link {link} has the negative price {value}", where=where)
        seen.add(link)
        price[link] = value
    worth = sum((x.gbps * price[x.id] for x in graph.links), Fraction(0))
    unit = unit_cost(Net.of(graph), price, collective, root)
    if unit is None:
        raise CertificateError("some GPU cannot be reached at all", where=where)
    if unit == 0:
        raise CertificateError("the prices let one unit be served for free, so they prove nothing", where=where)
    return worth / unit


def unit_cost(net: Net, price: list[Fraction], collective: Collective, root: int | None) -> Fraction | None:
    """The cheapest cost of serving one unit of `collective` under link prices; None if a GPU cannot be reached."""
    n = net.nranks
    if collective.inward:
        net = net.reversed()
    if collective.uses_trees:
        costs, scale = _tree_costs(net, price, None if root is None else [root])
        if costs is None:
            return None
        if collective.both_phases:
            back, _ = _tree_costs(net.reversed(), price, None if root is None else [root])
            return None if back is None else Fraction(min(a + b for a, b in zip(costs, back, strict=True)), scale)
        return Fraction(sum(costs), scale * len(costs))
    scale = math.lcm(*(p.denominator for p in price))
    whole = [int(p * scale) for p in price]
    pairs: dict[int, list[int]]
    if root is not None:
        pairs = {root: [v for v in range(n) if v != root]}
    elif collective is Collective.ALLTOALL:
        pairs = {u: [v for v in range(n) if v != u] for u in range(n)}
    else:
        pairs = {u: [(u + 1) % n] for u in range(n)}
    total = 0
    for source, targets in pairs.items():
        reached, _ = cheapest_paths(net, whole, source)
        for target in targets:
            value = reached[target]
            if value is None:
                return None
            total += value
    return Fraction(total, scale if collective is Collective.SENDRECV else scale * n)


def _tree_costs(net: Net, price: list[Fraction], roots: list[int] | None) -> tuple[list[int] | None, int]:
    dist, scale = exact_distances(net, price)
    costs = []
    for root in range(net.nranks) if roots is None else roots:
        parent = cheapest_arborescence(dist.cost, root, dist.big)
        if parent is None:
            return None, scale
        costs.append(arborescence_cost(dist.cost, parent))
    return costs, scale
