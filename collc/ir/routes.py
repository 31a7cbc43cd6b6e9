"""The ways of FIFOs over the links of a plan's graph: their class, and the proof that they lead where they must."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from collc.errors import IRError
from collc.ir.nodes import Fifo, Program, Through
from collc.topology.model import CLASSES, LinkKind, PlanGraph


def slowest(graph: PlanGraph | None, routes: Iterable[Iterable[int]]) -> LinkKind | None:
    """The class of routes; None where there are none."""
    kinds = set() if graph is None else {graph.links[link].kind for route in routes for link in route}
    return max(kinds, key=CLASSES.index, default=None)


def slower(kinds: Iterable[LinkKind | None]) -> LinkKind | None:
    """The slowest of some classes; None where there are none."""
    return max((kind for kind in kinds if kind is not None), key=CLASSES.index, default=None)


def server_numbers(graph: PlanGraph) -> tuple[int, ...]:
    """The server of each rank, numbered in the order of the ranks; empty where all ranks are on one."""
    names = list(dict.fromkeys(graph.rank_servers))
    return tuple(names.index(graph.servers[rank]) for rank in graph.ranks) if len(names) > 1 else ()


def moved_fifos(program: Program, numbers: Sequence[int]) -> tuple[Fifo, ...]:
    """Its FIFOs over links that have these numbers in another graph."""
    return tuple(
        replace(fifo, routes=tuple(tuple(numbers[link] for link in route) for route in fifo.routes))
        for fifo in program.fifos
    )


def verify_routes(program: Program, graph: PlanGraph) -> None:
    """Raises IRError unless every FIFO has a route to each of its readers: links of the graph, one after the other,
    through no other rank, of the class that the FIFO names; and unless ranks are on the servers of the graph."""
    if program.servers != server_numbers(graph):
        raise IRError(f"its ranks are on servers {program.servers}, the graph's on {server_numbers(graph)}")
    for number, fifo in enumerate(program.fifos):
        where = f"fifo {number} ({fifo.src} -> {','.join(map(str, fifo.dsts))})"
        if not fifo.routes:
            raise IRError("has no route", where=where)
        for dst, route in zip(fifo.dsts, fifo.routes, strict=True):
            _verify_route(graph, fifo, dst, route, where)
        if fifo.through is not None:
            _verify_switch(graph, fifo, where)
        if fifo.link is not slowest(graph, fifo.routes):
            raise IRError(f"its links are not of the class {fifo.link.value if fifo.link else None}", where=where)


def _verify_switch(graph: PlanGraph, fifo: Fifo, where: str) -> None:
    """A FIFO through a switch has a link to it and one from it, and the switch can do what is asked of it."""
    (route,) = fifo.routes
    switch = graph.vertices[graph.links[route[0]].dst]
    able = switch.reduce if fifo.through is Through.SUM else switch.multicast
    if len(route) != 2 or not able:
        raise IRError(f"{switch.name} does not {'add up' if fifo.through is Through.SUM else 'copy'}", where=where)


def _verify_route(graph: PlanGraph, fifo: Fifo, dst: int, route: tuple[int, ...], where: str) -> None:
    at = fifo.src
    for link in route:
        if not 0 <= link < len(graph.links) or graph.links[link].src != at:
            raise IRError(f"link {link} does not go on from {graph.vertices[at].name}", where=where)
        if at in graph.ranks and at != fifo.src:
            raise IRError(f"its route passes through rank {at}", where=where)
        at = graph.links[link].dst
    if at != dst:
        raise IRError(f"its route ends at {graph.vertices[at].name}, not at rank {dst}", where=where)
