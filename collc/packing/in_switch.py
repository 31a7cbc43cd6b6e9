"""Plans that copy and sum inside a switch (NVLS): one switch joins all ranks, each part of the data crosses it once.

A part has a *head*, the rank that asks the switch for it. To reduce, the switch reads the part out of all ranks, adds
it up and hands the sum to the head; to spread, the head stores the part and the switch writes it to all ranks. The
head's own copy takes the same way as all others, as the hardware does it, so a GPU's links carry the whole buffer and,
on top, the parts that it is the head of. The best parts have a closed form here, and link prices prove it.
"""

from __future__ import annotations

from fractions import Fraction

from collc.checker.certificates import certificate_bound
from collc.checker.in_switch import in_switch_bound, switch_ports
from collc.collectives.model import Collective
from collc.packing.model import Cut, InSwitch, Prices
from collc.topology.model import PlanGraph


def in_switch_plan(graph: PlanGraph, collective: Collective, root: int | None) -> InSwitch | None:
    """The best plan of this kind, or None: no single switch that can do what `collective` needs joins all ranks.

    With several such switches, the first of those that reach most.
    """
    if not collective.uses_trees or graph.nranks < 2:
        return None
    found = [made for v in graph.forwarders if (made := _through(graph, collective, root, v)) is not None]
    return max(found, key=lambda made: made.rate, default=None)


def _through(graph: PlanGraph, collective: Collective, root: int | None, switch: int) -> InSwitch | None:
    vertex = graph.vertices[switch]
    ports = switch_ports(graph, switch)
    if ports is None or (collective.reduces and not vertex.reduce) or (collective.spreads and not vertex.multicast):
        return None
    up = [graph.links[port.up].gbps for port in ports]
    down = [graph.links[port.down].gbps for port in ports]
    if collective.both_phases:
        return _all_reduce(graph, switch, [(port.up, port.down) for port in ports])
    # One phase: the whole buffer goes one way over the links of every rank, the heads' parts the other way.
    heads = list(graph.ranks) if root is None else [root]
    whole, part = (up, down) if collective.reduces else (down, up)
    links = [(port.up, port.down) if collective.reduces else (port.down, port.up) for port in ports]
    thinnest = min(graph.ranks, key=lambda r: whole[r])
    asking = min(heads, key=lambda r: part[r])
    rate = min(whole[thinnest], len(heads) * part[asking])
    full = links[thinnest][0] if rate == whole[thinnest] else links[asking][1]
    return _proven(graph, collective, root, switch, rate, [(h, rate / len(heads)) for h in heads], [full])


def _all_reduce(graph: PlanGraph, switch: int, ports: list[tuple[int, int]]) -> InSwitch:
    """rate + part of g <= what g's links carry, for every rank g: the parts are what is left, scaled to the rate."""
    n = graph.nranks
    thin = [min(pair, key=lambda link: graph.links[link].gbps) for pair in ports]
    least = [graph.links[link].gbps for link in thin]
    rate = min(min(least), sum(least, Fraction(0)) / (n + 1))
    left = [gbps - rate for gbps in least]
    if all(room * n >= rate for room in left):
        heads = [(r, rate / n) for r in graph.ranks]
    else:
        heads = [(r, room * rate / sum(left, Fraction(0))) for r, room in enumerate(left) if room]
    full = [thin[least.index(rate)]] if rate in least else thin
    return _proven(graph, Collective.ALL_REDUCE, None, switch, rate, heads, full)


def _proven(
    graph: PlanGraph,
    collective: Collective,
    root: int | None,
    switch: int,
    rate: Fraction,
    heads: list[tuple[int, Fraction]],
    full: list[int],
) -> InSwitch:
    """With the links `full`, of equal prices, as the proof, and the best cut around a single rank."""
    prices = Prices(tuple((link, Fraction(1)) for link in sorted(full)))
    cut = _cut(graph, collective, root)
    bound = in_switch_bound(graph, collective, root, switch, prices)
    limit = certificate_bound(graph, collective, root, cut)
    return InSwitch(switch, rate, bound, rate == bound, prices, limit, cut, tuple(heads))


def _cut(graph: PlanGraph, collective: Collective, root: int | None) -> Cut:
    """The best of the cuts that part one rank from all others, which is the best of all where only a switch joins them.

    A cut counts what must leave or enter and not how, so it holds with copies and sums inside switches as well.
    """
    everything = range(len(graph.vertices))
    sides = [(r,) for r in graph.ranks] + [tuple(v for v in everything if v != r) for r in graph.ranks]
    cuts = [Cut(side) for side in sides if root is None or root in side]
    return min(cuts, key=lambda cut: certificate_bound(graph, collective, root, cut))
