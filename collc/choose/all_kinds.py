"""One library for all kinds of servers of a topology: the sets of GPUs of each, side by side.

The library's machine is the first server of every kind, each by itself. A run has to say which it is on: a state of the
machine for each kind lacks all the others, and creation takes the state with the links that it finds. Where nobody says
what this machine is, no state fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from collc.choose.servers import only_server, server_kinds
from collc.errors import UsageError
from collc.packing.sets.allocations import allocations
from collc.packing.sets.gpu_sets import GpuSet, GpuSets, MachineState, served_sets, written_set
from collc.packing.sets.losses import check_size, surviving_sets
from collc.topology.canonical import fingerprint, match
from collc.topology.graph import plan_graph
from collc.topology.losses import Loss, used_part
from collc.topology.model import LinkKind, PlanGraph, Topology


def kinds_in_one(
    topology: Topology, text: str | None, links: str | None, survive: int
) -> tuple[list[PlanGraph], GpuSets]:
    """The graphs of a library for every kind of server, and the sets of GPUs that they serve on each.

    Args:
        text: sets of each server as ``--allocations`` takes them: connected, all or sizes [all GPUs].
        links: as in ``--links``.
        survive: 1: also after every single loss of a server.

    Raises:
        CollcError: some server has no plan, or the kinds cannot be told apart in one library.
    """
    alone = [only_server(topology, kind.servers[0], plain=False) for kind in server_kinds(topology, links)]
    parts = [_part(machine, text, links, survive) for machine in alone]
    used = [{link.kind for graph in graphs for link in graph.links} for graphs, _ in parts]
    kinds = set[LinkKind]().union(*used)
    known = [used_part(machine, kinds) for machine in alone]
    idle = any(link.kind not in own for server, own in zip(known, used, strict=True) for link in server.links)
    if idle and (text is not None or survive):
        # A server has links that only others use; what may change places, and be lost, depends on whether they count.
        raise UsageError(
            "the servers use links of different kinds, which --allocations and --survive cannot tell apart in one file",
            where=topology.name,
            hint="name a folder with -o, for a library for each kind of server",
        )
    union = _side_by_side(topology, known)
    check_size(topology.name, len(union.vertices))
    return _merged(union, alone, parts)


def _part(machine: Topology, text: str | None, links: str | None, survive: int) -> tuple[list[PlanGraph], GpuSets]:
    """Returns the graphs and sets of GPUs of a library for only this server."""
    if survive:
        return surviving_sets(machine, None, text, links)
    if text is None:
        graph = plan_graph(machine, None, links)
        return [graph], written_set(machine, [graph.vertices[rank].name for rank in graph.ranks])
    found = allocations(machine, text, links)
    return [a.graph for a in found], served_sets(machine, found, links)


def _side_by_side(topology: Topology, servers: Sequence[Topology]) -> Topology:
    return Topology(
        topology.name,
        tuple(vertex for server in servers for vertex in server.vertices),
        tuple(link for server in servers for link in server.links),
        {name: members for server in servers for name, members in server.servers.items()},
    )


def _merged(
    union: Topology, alone: Sequence[Topology], parts: Sequence[tuple[list[PlanGraph], GpuSets]]
) -> tuple[list[PlanGraph], GpuSets]:
    """The sets and states of all servers, in the numbers of the whole."""
    ngpus = len(union.gpus)
    graphs: list[PlanGraph] = []
    known: dict[str, int] = {}
    sets: list[GpuSet] = []
    # Nobody said what this machine is: that state serves nothing.
    states = [MachineState(None, tuple(range(ngpus)), 0)]
    fallen: list[tuple[Loss, str]] = []
    first = 0
    for machine, (own, held) in zip(alone, parts, strict=True):
        numbers = [_place(graph, graphs, known) for graph in own]
        gone = tuple(v.name for v in union.vertices if v.name not in {w.name for w in machine.vertices})
        (server,) = machine.servers
        at = 0
        for state in held.states or (MachineState(None, held.classes, len(held.sets)),):
            moved = [_moved(one, own, numbers, graphs, first) for one in held.sets[at : at + state.nsets]]
            at += state.nsets
            classes = _classes(state.classes, first, [v.name in set(gone) for v in union.gpus], union)
            plain = state.nsets == 1 and state.classes == tuple(range(len(state.classes)))
            classes = tuple(range(ngpus)) if plain else classes
            states.append(dataclasses.replace(state, classes=classes, gone=gone, server=server))
            sets += moved
        fallen += held.fallen
        first += len(machine.gpus)
    return graphs, GpuSets(union, states[0].classes, tuple(sets), tuple(states), tuple(fallen))


def _place(graph: PlanGraph, graphs: list[PlanGraph], known: dict[str, int]) -> tuple[int, tuple[int, ...]]:
    """The number of the graph that stands for this one, and which of its vertices stands for each of that graph."""
    name = fingerprint(graph)
    if name not in known:
        known[name] = len(graphs)
        graphs.append(graph)
        return known[name], tuple(range(len(graph.vertices)))
    mapping = match(graphs[known[name]], graph)
    assert mapping is not None, "two different graphs share a fingerprint"
    return known[name], tuple(mapping)


def _moved(
    one: GpuSet, own: Sequence[PlanGraph], numbers: Sequence[tuple[int, tuple[int, ...]]], graphs: Sequence[PlanGraph],
    first: int,
) -> GpuSet:  # fmt: skip
    """Returns a set of one server in the numbers of the whole, with the graph that stands for the set's graph."""
    graph, (number, mapping) = own[one.allocation], numbers[one.allocation]
    plays = one.forwarders or tuple(graph.vertices[v].name for v in graph.forwarders)
    name_of = dict(zip(graph.forwarders, plays, strict=True))
    forwarders = tuple(name_of[mapping[v]] for v in graphs[number].forwarders)
    ranks = tuple(mapping.index(rank) for rank in one.ranks)
    return GpuSet(tuple(gpu + first for gpu in one.gpus), number, ranks, forwarders)


def _classes(own: Sequence[int], first: int, gone: Sequence[bool], union: Topology) -> tuple[int, ...]:
    """Returns the class of every GPU. GPUs of one absent server share a class, because they have no links."""
    server_of = {name: server for server, members in union.servers.items() for name in members}
    keys = [
        (server_of[gpu.name], -1 if away else own[number - first])
        for number, (gpu, away) in enumerate(zip(union.gpus, gone, strict=True))
    ]
    order = list(dict.fromkeys(keys))
    return tuple(order.index(key) for key in keys)
