"""Finds the best rings and chains of equal bandwidth, as NCCL uses them on the links of one server.

NCCL gives every channel the same bandwidth. A channel of its ring algorithm is a closed order of all GPUs. A channel of
its tree algorithm is, inside a server, a chain that reduces to the first GPU and broadcasts back. `best_rings` and
`best_chains` choose how often to use each order so that the channels carry the most together. A relaxation, whose
channels may have any bandwidths, bounds what any choice could carry.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import PackingError, UsageError
from collc.packing.candidates.plans import candidate
from collc.packing.candidates.ring_rates import most_rings
from collc.packing.solvers.highs import INF, Outcome, Program
from collc.packing.solvers.network import Distances, Net
from collc.topology.graph import plan_graph
from collc.topology.model import PlanGraph, Topology

# NCCL makes two channels of each channel in a file, and has at most 64.
MAX_CHANNELS = 32
# Up to this many GPUs all orders are listed. More GPUs must be equal and joined by one switch.
MAX_LISTED = 8
# The most that NCCL's search gives a channel, which is one thread block, on most generations (speedArrayIntra).
MAX_CHANNEL_GBPS = 40
# An integer program over more orders than this takes long. Graphs with more are nearly complete.
_MANY = 5000
_ENOUGH = 1 + Fraction(1, 10**6)


@dataclass(frozen=True)
class Orders:
    """Channels of equal bandwidth.

    Attributes:
        channels: the order of the ranks of each channel.
        gbps: the GB/s of each channel.
        bound: the most GB/s that channels of any bandwidths carry together. If it equals `total`, no choice is better.
    """

    channels: tuple[tuple[int, ...], ...]
    gbps: Fraction
    bound: Fraction

    @property
    def total(self) -> Fraction:
        """The GB/s of all channels together."""
        return self.gbps * len(self.channels)

    @property
    def proved(self) -> bool:
        """True if no channels carry more, even with unequal bandwidths, except for a difference of one millionth."""
        return self.total * _ENOUGH >= self.bound


@dataclass(frozen=True)
class _Order:
    """An order of the ranks, and (link, number of uses) of each link that it uses."""

    ranks: tuple[int, ...]
    load: tuple[tuple[int, int], ...]


def ring_links(machine: Topology, gpus: Sequence[str] | None, links: str | None) -> tuple[PlanGraph, str | None]:
    """Returns the graph of NCCL's rings, and a note if a plan would use other links.

    If no ring closes over the fast links of a server, NCCL's rings also use PCIe. If `links` names the links, or the
    network joins several servers, the graph is the same as for a plan.

    Args:
        gpus, links: as for `plan_graph`.

    Raises:
        TopologyError, UsageError: as for `plan_graph`.
    """
    graph = plan_graph(machine, gpus, links)
    if links is not None or graph.nservers > 1 or _closes(graph):
        return graph, None
    note = f"no ring closes over {kinds_of(graph)} links alone: these rings take PCIe where they must"
    return plan_graph(machine, gpus, "all"), note


def kinds_of(graph: PlanGraph) -> str:
    """Returns the kinds of links of a graph, joined by "and"."""
    return " and ".join(dict.fromkeys(link.kind.value for link in graph.links))


def _closes(graph: PlanGraph) -> bool:
    try:
        candidate(graph, Collective.ALL_REDUCE, None, "ring")
    except PackingError:
        return False
    return True


def best_rings(graph: PlanGraph) -> Orders:
    """Returns the rings that carry the most.

    Raises:
        PackingError: no ring closes over the links of this graph.
        UsageError: there are too many unequal GPUs to list all rings.
    """
    orders = _listed(graph, closed=True)
    return _best(graph, orders, _relaxation(graph, orders), None)


def best_chains(graph: PlanGraph, channels: int, least: Fraction = Fraction(0)) -> Orders:
    """Returns the `channels` chains that carry the most.

    Args:
        least: if there are many orders and chains cannot carry more GB/s than this, good chains are enough.

    Raises:
        PackingError: no chain joins the GPUs.
        UsageError: there are too many unequal GPUs to list all chains.
    """
    orders = _listed(graph, closed=False)
    return _chains(graph, orders, _relaxation(graph, orders), channels, least)


def best_pair(graph: PlanGraph) -> tuple[Orders | None, Orders]:
    """Returns the rings that carry the most, and equally many chains, as NCCL needs them.

    If chains beat the rings at all_reduce and more chains carry more, each ring is split into several thinner ones. If
    no ring closes, the rings are None.

    Raises:
        PackingError, UsageError: as for `best_chains`.
    """
    try:
        rings = _thin(best_rings(graph))
    except PackingError:
        rings = None
    orders = _listed(graph, closed=False)
    bound = _relaxation(graph, orders)
    if rings is None:
        tried = (_chains(graph, orders, bound, count, Fraction(0)) for count in range(1, 9))
        return None, max(tried, key=lambda found: found.total)
    n, once = graph.nranks, len(rings.channels)
    least = rings.total * n / (2 * (n - 1))
    best = _chains(graph, orders, bound, once, least)
    for times in range(2, min(4, MAX_CHANNELS // once) + 1):
        if best.proved or best.bound <= least * _ENOUGH:
            break
        more = _chains(graph, orders, bound, once * times, least)
        best = more if more.total > best.total else best
    times = len(best.channels) // once
    return Orders(rings.channels * times, rings.gbps / times, rings.bound), best


def _chains(graph: PlanGraph, orders: Sequence[_Order], bound: Fraction, channels: int, least: Fraction) -> Orders:
    if len(orders) > _MANY and bound <= least * _ENOUGH:
        return _even(graph, orders, channels, bound)
    return _best(graph, orders, bound, channels)


def _thin(found: Orders) -> Orders:
    """Returns the channels split into equal copies of at most `MAX_CHANNEL_GBPS` each, as far as channels allow."""
    times = math.ceil(found.gbps / MAX_CHANNEL_GBPS)
    times = max(1, min(times, MAX_CHANNELS // len(found.channels)))
    return Orders(found.channels * times, found.gbps / times, found.bound)


def _even(graph: PlanGraph, orders: Sequence[_Order], channels: int, bound: Fraction) -> Orders:
    """Returns zigzags in turn, all at the speed that the most loaded link allows."""
    found = {order.ranks: order for order in orders}
    turns = [found[way] for way in _zigzags(graph.nranks) if way in found] or list(orders)
    chosen = [turns[i % len(turns)] for i in range(channels)]
    used: dict[int, int] = {}
    for order in chosen:
        for link, times in order.load:
            used[link] = used.get(link, 0) + times
    speed = min(graph.links[link].gbps / times for link, times in used.items())
    return Orders(tuple(order.ranks for order in chosen), speed, bound)


def _zigzags(n: int) -> list[tuple[int, ...]]:
    """Returns the order 0, 1, n-1, 2, n-2 ... and its rotations.

    For even n, the first half of them share no pair (Walecki, in Lucas 1892).
    """
    first = [(i + 1) // 2 if i % 2 else (n - i // 2) % n for i in range(n)]
    ways = [tuple((v + turn) % n for v in first) for turn in range(n)]
    # A chain and its reverse are the same, so the direction with the smaller first rank is used.
    return [way if way[0] <= way[-1] else way[::-1] for way in ways]


def _listed(graph: PlanGraph, *, closed: bool) -> list[_Order]:
    """Returns one order for each distinct load. Hops use shortest paths, never through a rank.

    Args:
        closed: orders are rings, else chains.
    """
    net = Net.of(graph)
    hops = Distances(net, [1] * net.nlinks, net.nlinks + 1)
    n = net.nranks
    near = [[v for v in range(n) if hops.cost[u][v] < hops.big] for u in range(n)]
    if n > MAX_LISTED and not _alike(graph, near):
        hint = f"choose at most {MAX_LISTED} with --gpus"
        raise UsageError(f"the rings of {n} unequal GPUs are too many to list", hint=hint)
    ways = _ways(near, closed) if n <= MAX_LISTED else iter([tuple(range(n))] if closed else _zigzags(n))
    found: dict[tuple[tuple[int, int], ...], _Order] = {}
    for way in ways:
        pairs = list(itertools.pairwise((*way, way[0]) if closed else way))
        pairs += [] if closed else [(b, a) for a, b in pairs]
        if any(hops.cost[u][v] >= hops.big for u, v in pairs):
            continue
        count: dict[int, int] = {}
        for u, v in pairs:
            for link in hops.path(u, v):
                count[link] = count.get(link, 0) + 1
        load = tuple(sorted(count.items()))
        found.setdefault(load, _Order(way, load))
    if not found:
        what = "ring closes" if closed else "chain joins the GPUs"
        raise PackingError(f"no {what} over these links", where=graph.name, hint="NCCL needs --links all here")
    return list(found.values())


def _alike(graph: PlanGraph, near: Sequence[Sequence[int]]) -> bool:
    """Returns whether all orders of the GPUs are equally good: each GPU has an equal pair of links to one switch."""
    ends = {(link.src, link.dst): link.gbps for link in graph.links}
    return (
        len(graph.vertices) == graph.nranks + 1
        and len(ends) == len(graph.links) == 2 * graph.nranks
        and len(set(ends.values())) == 1
        and all(len(others) == graph.nranks - 1 for others in near)
    )


def _ways(near: Sequence[Sequence[int]], closed: bool) -> Iterator[tuple[int, ...]]:
    """Yields all directed rings, from rank 0, or all chains, in one direction each."""
    n = len(near)
    stack: list[tuple[int, ...]] = [(0,)] if closed else [(u,) for u in range(n)]
    while stack:
        way = stack.pop()
        if len(way) == n:
            if closed or way[0] <= way[-1]:
                yield way
            continue
        stack += [(*way, v) for v in near[way[-1]] if v not in way]


def _best(graph: PlanGraph, orders: Sequence[_Order], bound: Fraction, channels: int | None) -> Orders:
    """Returns the choice of `channels` channels (None: any number up to `MAX_CHANNELS`) that carries the most."""
    room = [link.gbps for link in graph.links]
    # In the best choice some link is full, so the speed of a channel is that link's speed over a whole number.
    speeds = sorted({gbps / k for gbps in room for k in range(1, 2 * MAX_CHANNELS + 1)}, reverse=True)
    tries = []
    for speed in speeds:
        most = min(channels or MAX_CHANNELS, int(bound * _ENOUGH / speed))
        if most and (channels is None or most == channels):
            tries.append((most * speed, -most, speed))
    best = Orders((), Fraction(0), bound)
    for possible, _, speed in sorted(tries, reverse=True):
        if possible <= best.total:
            break
        chosen = most_rings([order.load for order in orders], [int(gbps / speed) for gbps in room])
        made = tuple(order.ranks for order, count in zip(orders, chosen, strict=True) for _ in range(count))
        made = made[: channels or MAX_CHANNELS]
        if (channels is None or len(made) == channels) and speed * len(made) > best.total:
            best = Orders(made, speed, bound)
    if not best.channels:
        raise PackingError(f"no {channels or 'such'} channels of equal speed fit", where=graph.name)
    return best


def _relaxation(graph: PlanGraph, orders: Sequence[_Order]) -> Fraction:
    """Returns the most GB/s that channels of any bandwidths carry, proven by exact prices from the dual solution."""
    room = [link.gbps for link in graph.links]
    program = Program(maximize=True)
    for gbps in room:
        program.row(-INF, float(gbps))
    for order in orders:
        program.column(1.0, 0.0, INF, {link: float(times) for link, times in order.load})
    if program.solve() is not Outcome.OPTIMAL:
        raise PackingError("the solver found no bound on NCCL's channels")
    prices = [max(Fraction(0), Fraction(abs(value)).limit_denominator(10**6)) for value in program.duals()]
    # Prices prove a bound if they are scaled so that every order costs 1 or more.
    cheapest = min(sum((prices[link] * times for link, times in order.load), Fraction(0)) for order in orders)
    if not cheapest:
        raise PackingError("the solver found no bound on NCCL's channels")
    return sum((price * gbps for price, gbps in zip(prices, room, strict=True)), Fraction(0)) / cheapest
