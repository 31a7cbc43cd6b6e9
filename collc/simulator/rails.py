"""The rails that join servers: what a runtime sends from one to another goes over all of them, by their rates.

A rail is a way over links of the network from a card of one server to a card of the other. As where the runtime joins
machines, each card is an end of one rail, the first ones with the first ones, as far as the network joins them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from collc.topology.model import GraphLink, LinkKind, PlanGraph

Pair = tuple[int, int]

# The parts of a byte, so that bytes divide over the rails.
PARTS = 5040


@dataclass(frozen=True, slots=True)
class Joined:
    """The links from one server to another, and the number of the `PARTS` parts of a byte that cross each link.

    `latency_us` is the latency of the slowest rail: a chunk has arrived when all of its pieces have.
    """

    links: tuple[int, ...]
    parts: tuple[int, ...]
    latency_us: float

    @property
    def divides(self) -> bool:
        """Returns whether there are several rails."""
        return any(part != PARTS for part in self.parts)


class Rails:
    """The rails of a graph, computed on demand. Servers with ranks are numbered in the order of their ranks."""

    def __init__(self, graph: PlanGraph) -> None:
        numbers = {name: number for number, name in enumerate(dict.fromkeys(graph.servers))}
        self._graph = graph
        self._server = [numbers[name] for name in graph.servers]
        self._ends = {numbers[name] for name in graph.rank_servers}
        self._out: dict[int, list[GraphLink]] = {}
        for link in graph.links:
            if link.kind is LinkKind.NET:
                self._out.setdefault(link.src, []).append(link)
        self._found: dict[Pair, tuple[tuple[int, ...], ...]] = {}

    def joined(self, routes: Iterable[tuple[Pair, tuple[int, ...]]]) -> dict[Pair, Joined]:
        """Returns the connection of each pair of different servers that routes join.

        If no path of only network links joins a pair, the widest of its routes does.
        """
        widest: dict[Pair, tuple[int, ...]] = {}
        for pair, route in routes:
            if pair[0] != pair[1]:
                route = tuple(link for link in route if self._graph.links[link].kind is LinkKind.NET) or route
                widest[pair] = min(widest.get(pair, route), route, key=lambda links: (-self._rate(links), links))
        return {pair: self._join(self.between(pair) or (route,)) for pair, route in widest.items()}

    def between(self, pair: Pair) -> tuple[tuple[int, ...], ...]:
        """The links of each rail from one server to another."""
        if pair not in self._found:
            taken: set[int] = set()
            ways = []
            for src in sorted(self._out):
                if self._server[src] == pair[0]:
                    way = self._way(src, pair[1], taken)
                    ways += [way] if way else []
                    taken |= {self._graph.links[link].dst for link in way[-1:]}
            self._found[pair] = tuple(ways)
        return self._found[pair]

    def _way(self, src: int, server: int, taken: set[int]) -> tuple[int, ...]:
        """The shortest way from a card to one of a server that is no end yet; empty where there is none."""
        came: dict[int, GraphLink] = {}
        todo = deque([src])
        while todo:
            at = todo.popleft()
            for link in self._out.get(at, ()):
                if link.dst in came or link.dst == src:
                    continue
                came[link.dst] = link
                if self._server[link.dst] == server and link.dst not in taken:
                    way = [link]
                    while way[-1].src != src:
                        way.append(came[way[-1].src])
                    return tuple(one.id for one in reversed(way))
                if self._server[link.dst] not in self._ends:
                    todo.append(link.dst)
        return ()

    def _rate(self, links: tuple[int, ...]) -> float:
        return min(float(self._graph.links[link].gbps) for link in links)

    def _join(self, ways: tuple[tuple[int, ...], ...]) -> Joined:
        rates = [self._rate(way) for way in ways]
        parts: dict[int, int] = {}
        left, rest = PARTS, sum(rates)
        for way, rate in zip(ways, rates, strict=True):
            part = round(left * rate / rest)
            left, rest = left - part, rest - rate
            for link in way if part else ():
                parts[link] = parts.get(link, 0) + part
        latency = max(sum(float(self._graph.links[link].latency_us) for link in way) for way in ways)
        return Joined(tuple(parts), tuple(parts.values()), latency)
