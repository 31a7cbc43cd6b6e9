"""Lists the GPU sets of a machine that a library serves, with the allocation whose plan each runs and its GPUs' ranks.

Interchangeable GPUs, such as all GPUs on one switch, form a class. Only sets of the first members of each class are
listed, so 16 interchangeable GPUs need 16 entries, not 65,536.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collc.errors import TopologyError
from collc.packing.sets.allocations import Allocation, fast_links, twins
from collc.topology.canonical import fingerprint, match
from collc.topology.graph import plan_graph
from collc.topology.losses import Loss
from collc.topology.model import Link, LinkKind, PlanGraph, Topology, Vertex, VertexKind


def pack_bus(pci: str | None) -> int:
    """Returns a PCI bus id as the runtime packs it (plan/gpu_place.h): domain, bus and device; 0 if unknown."""
    if pci is None:
        return 0
    domain, bus, device = (int(part, 16) for part in pci.partition(".")[0].split(":"))
    return domain << 32 | bus << 16 | device << 8 | 1


@dataclass(frozen=True)
class GpuSet:
    """A set of GPUs that a library serves.

    Attributes:
        gpus: the GPUs' indices in the topology, ascending.
        allocation: the number of the allocation whose plan serves them.
        ranks: the rank of each GPU in that plan.
        forwarders: the names of the vertices that correspond to the forwarders of the plan's graph, in their order;
            None for the forwarders of that graph.
    """

    gpus: tuple[int, ...]
    allocation: int
    ranks: tuple[int, ...]
    forwarders: tuple[str, ...] | None = None


@dataclass(frozen=True)
class MachineState:
    """A state of the machine.

    Attributes:
        loss: the loss of the state; None for the whole machine.
        classes: the class of each GPU in this state.
        nsets: the number of sets of this state.
        gone: in a library for several kinds of servers, the vertices of all servers except `server`.
        server: the server of the state in such a library.
    """

    loss: Loss | None
    classes: tuple[int, ...]
    nsets: int
    gone: tuple[str, ...] = ()
    server: str = ""


@dataclass(frozen=True)
class GpuSets:
    """The GPU sets of a machine that a library serves.

    Attributes:
        classes: the class of each GPU.
        sets: the sets; if there are states, the sets of each state in turn.
        states: empty for a library that only serves the whole machine.
        fallen: the losses that cut a GPU off, each with the reason.
    """

    topology: Topology
    classes: tuple[int, ...]
    sets: tuple[GpuSet, ...]
    states: tuple[MachineState, ...] = ()
    fallen: tuple[tuple[Loss, str], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the machine's GPUs, by number."""
        return tuple(v.name for v in self.topology.gpus)

    @property
    def buses(self) -> tuple[int, ...]:
        """The packed PCI bus ids of the machine's GPUs, by number.

        Empty if none is known, and for several servers, because their bus ids may be equal.
        """
        if len(self.topology.servers) != 1:
            return ()
        found = tuple(pack_bus(v.device.pci if v.device else None) for v in self.topology.gpus)
        return found if any(found) else ()

    @property
    def vertices(self) -> tuple[Vertex, ...]:
        """The machine's vertices, by number: the GPUs, then the forwarders."""
        return (*self.topology.gpus, *(v for v in self.topology.vertices if v.kind is not VertexKind.GPU))

    @property
    def vertex_names(self) -> tuple[str, ...]:
        """The names of the machine's vertices, by number."""
        return tuple(v.name for v in self.vertices)

    def forwarders(self, graphs: Sequence[PlanGraph]) -> list[list[int]]:
        """Returns for each set the numbers of the vertices that correspond to the forwarders of its plan's graph.

        Args:
            graphs: the graphs of the allocations' plans.
        """
        number = {name: i for i, name in enumerate(self.vertex_names)}
        found = []
        for one in self.sets:
            graph = graphs[one.allocation]
            own = [graph.vertices[v].name for v in graph.forwarders] if one.forwarders is None else one.forwarders
            # A vertex that is split by direction is two vertices of the graph, NAME+in and NAME+out.
            found.append([number[name] if name in number else number[name.rpartition("+")[0]] for name in own])
        return found

    def links(self, graphs: Sequence[PlanGraph]) -> list[Link]:
        """Returns the machine's links of the kinds that plans use.

        Args:
            graphs: the graphs of the allocations' plans.
        """
        kinds = {link.kind for graph in graphs for link in graph.links}
        return [link for link in self.topology.links if link.kind in kinds]

    def machine(self, graphs: Sequence[PlanGraph]) -> dict[str, Any]:
        """Returns the machine as JSON values. `collc.checker.machine` uses them to prove that each set has its links.

        Args:
            graphs: the graphs of the allocations' plans.
        """
        topology = self.topology
        number = {name: i for i, name in enumerate(self.vertex_names)}
        server = {name: server for server, members in topology.servers.items() for name in members}
        links = [[number[k.src], number[k.dst], k.kind.value, str(k.gbps)] for k in self.links(graphs)]
        # A CPU's memory is a link between the two halves of the CPU, which are one vertex of the machine.
        memories = {
            (at[link.src], link.kind.value, str(link.gbps)): None
            for graph, at in zip(graphs, (self._places(graph, number) for graph in graphs), strict=True)
            for link in graph.links
            if at[link.src] == at[link.dst]
        }
        return {
            "vertices": [[v.name, v.kind.value, server.get(v.name, "")] for v in self.vertices],
            "links": [*links, *([vertex, vertex, kind, gbps] for vertex, kind, gbps in memories)],
            "buses": [v.device.pci if v.device else None for v in topology.gpus] if self.buses else [],
            "cards": [
                [number[v.name], v.port.interface, v.port.pci]
                for v in self.vertices
                if v.kind is VertexKind.NIC and v.port is not None and v.port.up and (v.port.interface or v.port.pci)
            ],
        }

    @staticmethod
    def _places(graph: PlanGraph, number: Mapping[str, int]) -> list[int]:
        """Returns the number in the machine of every vertex of a graph; a negative one for other machines' vertices."""
        names = [v.name for v in graph.vertices]
        return [number.get(name, number.get(name.rpartition("+")[0], -1 - i)) for i, name in enumerate(names)]


def written_set(topology: Topology, gpus: Sequence[str]) -> GpuSets:
    """Returns the single set of a library without allocations. Rank i is the i-th GPU as written."""
    names = tuple(v.name for v in topology.gpus)
    order = sorted(range(len(gpus)), key=lambda rank: names.index(gpus[rank]))
    only = GpuSet(tuple(names.index(gpus[rank]) for rank in order), 0, tuple(order))
    return GpuSets(topology, tuple(range(len(names))), (only,))


def served_sets(topology: Topology, allocations: Sequence[Allocation], links: str | None) -> GpuSets:
    """Returns every set of the machine's GPUs whose graph is isomorphic to the graph of an allocation.

    Args:
        links: as in ``--links``, as for the allocations.
    """
    # Only links of kinds that some plan uses distinguish GPUs.
    numbered = gpu_classes(topology, {link.kind for allocation in allocations for link in allocation.graph.links})
    known = {allocation.fingerprint: i for i, allocation in reversed(list(enumerate(allocations)))}
    return GpuSets(topology, numbered, found_sets(topology, numbered, allocations, known, links))


def gpu_classes(topology: Topology, kinds: Iterable[LinkKind]) -> tuple[int, ...]:
    """Returns the class of each GPU. Interchangeable GPUs, over links of these kinds, have the same class."""
    names = [v.name for v in topology.gpus]
    place = {name: i for i, name in enumerate(names)}
    classes = list(range(len(names)))
    for members in twins(topology, ",".join(sorted(kind.value for kind in kinds))):
        for name in members:
            classes[place[name]] = place[members[0]]
    return tuple(sorted(set(classes)).index(c) for c in classes)


def found_sets(
    topology: Topology,
    numbered: Sequence[int],
    allocations: Sequence[Allocation],
    known: Mapping[str, int],
    links: str | None,
) -> tuple[GpuSet, ...]:
    """Returns every set of the first GPUs of each class whose graph is isomorphic to the graph of an allocation.

    Args:
        numbered: the class of each GPU.
        known: the number of the allocation with each fingerprint.
        links: as in ``--links``, as for the allocations.
    """
    names = [v.name for v in topology.gpus]
    found = []
    for gpus in _foremost_sets(numbered, sorted({len(a.gpus) for a in allocations})):
        for graph in _graphs(topology, [names[g] for g in gpus], links):
            number = known.get(fingerprint(graph))
            if number is None:
                continue
            mapping = match(allocations[number].graph, graph)
            assert mapping is not None, "two different graphs share a fingerprint"
            forwarders = tuple(graph.vertices[mapping[v]].name for v in graph.forwarders)
            found.append(GpuSet(gpus, number, tuple(mapping.index(t) for t in range(len(gpus))), forwarders))
            break
    return tuple(found)


def _foremost_sets(classes: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields the sets of the first GPUs of each class, by size."""
    members = [[g for g, c in enumerate(classes) if c == number] for number in range(max(classes) + 1)]
    for size in sizes:
        for counts in _compositions([len(m) for m in members], size):
            yield tuple(sorted(itertools.chain.from_iterable(m[:n] for m, n in zip(members, counts, strict=True))))


def _compositions(most: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    """Yields every tuple of counts of at most `most` each that add up to `total`."""
    if not most:
        if total == 0:
            yield ()
        return
    for first in range(min(most[0], total), -1, -1):
        if total - first <= sum(most[1:]):
            for rest in _compositions(most[1:], total - first):
                yield (first, *rest)


def _graphs(topology: Topology, gpus: Sequence[str], links: str | None) -> Iterator[PlanGraph]:
    """Yields the graphs of a set over the links that its allocation may use."""
    for choice in dict.fromkeys((links if links is not None else fast_links(topology), links)):
        try:
            yield plan_graph(topology, gpus, choice)
        except TopologyError:
            continue
