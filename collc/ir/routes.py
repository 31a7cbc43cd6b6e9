"""The routes of FIFOs over the links of a plan's graph: their link class, and the proof that they reach their ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from collc.errors import IRError
from collc.ir.nodes import Fifo, Program, Through
from collc.topology.model import CLASSES, LinkKind, PlanGraph


def slowest(graph: PlanGraph | None, routes: Iterable[Iterable[int]]) -> LinkKind | None:
    """Returns the class of the slowest link of some routes, given by link ids; None without a graph or a link."""
    kinds = set() if graph is None else {graph.links[link].kind for route in routes for link in route}
    return max(kinds, key=CLASSES.index, default=None)


def slower(kinds: Iterable[LinkKind | None]) -> LinkKind | None:
    """Returns the slowest of some link classes; None if all are None."""
    return max((kind for kind in kinds if kind is not None), key=CLASSES.index, default=None)


def server_numbers(graph: PlanGraph) -> tuple[int, ...]:
    """Returns the server number of each rank, numbered by first appearance; empty if all ranks are on one server."""
    names = list(dict.fromkeys(graph.rank_servers))
    return tuple(names.index(graph.servers[rank]) for rank in graph.ranks) if len(names) > 1 else ()


def moved_fifos(program: Program, numbers: Sequence[int]) -> tuple[Fifo, ...]:
    """Returns the FIFOs of a program with the link ids of another graph.

    Args:
        numbers: the new id of each link, by its old id.
    """
    return tuple(
        replace(fifo, routes=tuple(tuple(numbers[link] for link in route) for route in fifo.routes))
        for fifo in program.fifos
    )


def verify_routes(program: Program, graph: PlanGraph) -> None:
    """Checks the routes of all FIFOs, and that the ranks are on the servers of the graph.

    A route is a path of links from the source to the destination that passes through no other rank. The slowest link of
    all routes of a FIFO has the class that the FIFO names.

    Raises:
        IRError: a FIFO has no such routes, or the servers differ.
    """
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
    """Checks that the route is one link to a switch and one link from it, and that the switch can add or copy."""
    (route,) = fifo.routes
    switch = graph.vertices[graph.links[route[0]].dst]
    is_able = switch.reduce if fifo.through is Through.SUM else switch.multicast
    if len(route) != 2:
        raise IRError(f"its route has {len(route)} links, not one to a switch and one from it", where=where)
    if not is_able:
        raise IRError(f"{switch.name} does not {'add up' if fifo.through is Through.SUM else 'copy'}", where=where)


def _verify_route(graph: PlanGraph, fifo: Fifo, dst: int, route: tuple[int, ...], where: str) -> None:
    vertex = fifo.src
    for link in route:
        if not 0 <= link < len(graph.links) or graph.links[link].src != vertex:
            raise IRError(f"link {link} does not go on from {graph.vertices[vertex].name}", where=where)
        if vertex in graph.ranks and vertex != fifo.src:
            raise IRError(f"its route passes through rank {vertex}", where=where)
        vertex = graph.links[link].dst
    if vertex != dst:
        raise IRError(f"its route ends at {graph.vertices[vertex].name}, not at rank {dst}", where=where)
