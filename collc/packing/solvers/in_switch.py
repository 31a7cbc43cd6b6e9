"""Plans copies and sums inside one switch (NVLS) that joins all ranks. Each part of the data crosses the switch once.

Each part has a *head*, the rank that requests it from the switch. To reduce, the switch reads the part from all ranks,
adds it up and returns the sum to the head. To broadcast, the head stores the part and the switch writes it to all
ranks. As in the hardware, the head's own copy also crosses the switch. So a GPU's links carry the whole buffer and, in
addition, the parts whose head the GPU is. The best sizes of parts have a closed form, and link prices prove it.
"""

from __future__ import annotations

from fractions import Fraction

from collc.checker.certificates import certificate_bound
from collc.checker.in_switch import in_switch_bound, switch_ports
from collc.collectives.model import Collective
from collc.packing.model import Cut, InSwitch, Prices
from collc.topology.model import PlanGraph


def in_switch_plan(graph: PlanGraph, collective: Collective, root: int | None) -> InSwitch | None:
    """Returns the best plan through one switch, or None if no switch that joins all ranks can do it.

    The switch must add if the collective reduces, and copy if it broadcasts. Among equally fast switches the first one
    is used.
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
    # One phase: the whole buffer crosses the links of every rank in one direction, the heads' parts in the other one.
    heads = list(graph.ranks) if root is None else [root]
    whole, part = (up, down) if collective.reduces else (down, up)
    links = [(port.up, port.down) if collective.reduces else (port.down, port.up) for port in ports]
    thinnest = min(graph.ranks, key=lambda r: whole[r])
    asking = min(heads, key=lambda r: part[r])
    rate = min(whole[thinnest], len(heads) * part[asking])
    full = links[thinnest][0] if rate == whole[thinnest] else links[asking][1]
    return _proven(graph, collective, root, switch, rate, [(h, rate / len(heads)) for h in heads], [full])


def _all_reduce(graph: PlanGraph, switch: int, ports: list[tuple[int, int]]) -> InSwitch:
    """Returns the plan of an all_reduce.

    For every rank, the rate plus its part as a head is at most the capacity of its thinner link. If equal parts do not
    fit, each rank's part is the capacity that the rate leaves, scaled so that the parts add up to the rate.
    """
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
    """Returns the plan with its proofs: equal prices on the links `full`, and the best cut around a single rank."""
    prices = Prices(tuple((link, Fraction(1)) for link in sorted(full)))
    cut = _cut(graph, collective, root)
    bound = in_switch_bound(graph, collective, root, switch, prices)
    limit = certificate_bound(graph, collective, root, cut)
    return InSwitch(switch, rate, bound, rate == bound, prices, limit, cut, tuple(heads))


def _cut(graph: PlanGraph, collective: Collective, root: int | None) -> Cut:
    """Returns the best cut that separates one rank from all others.

    It is the best of all cuts if only a switch joins the ranks. A cut counts the bytes that must leave or enter, so its
    bound also holds with copies and sums inside switches.
    """
    everything = range(len(graph.vertices))
    sides = [(r,) for r in graph.ranks] + [tuple(v for v in everything if v != r) for r in graph.ranks]
    cuts = [Cut(side) for side in sides if root is None or root in side]
    return min(cuts, key=lambda cut: certificate_bound(graph, collective, root, cut))
