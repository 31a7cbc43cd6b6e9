"""Lists the allocations of a machine, isomorphic ones once, for `--allocations` of `plan` and `compile`.

`plan` solves isomorphic graphs once and relabels the solution, so that the plan of another GPU set needs no second
solution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from collc.errors import PackingError, TopologyError, UsageError
from collc.packing.sets.cluster_sets import cluster_sets, one_of_each_class, only_gpus, spread, with_gpus
from collc.packing.solvers.network import Net
from collc.topology.allocation import parse_gpus
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.model import GraphLink, LinkKind, PlanGraph, Topology, Vertex, VertexKind

_FAST = (LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI)
_SIZES = re.compile(r"([0-9]{1,6})\.\.([0-9]{1,6})")
_HINT = "connected, all, sizes such as 3..8, or GPU sets such as 0,1,2/4,5,6"
# More sets are neither a readable list nor a library that loads in a sensible time.
_MAX_SETS = 5_000


@dataclass(frozen=True)
class Allocation:
    """A class of GPU sets with isomorphic graphs. `gpus` is one of the sets, and `graph` is its graph."""

    gpus: tuple[str, ...]
    graph: PlanGraph
    fingerprint: str


def allocations(topology: Topology, text: str, links: str | None = None) -> list[Allocation]:
    """Returns the allocations that `--allocations TEXT` names.

    Args:
        text: one of these. ``connected``: every distinct set of 3 or more GPUs that the fast links join (46 on a
            DGX-1V). ``N..M``: every distinct set of N to M GPUs that any links join, such as PCIe or the network.
            ``all``: the same for 2 or more GPUs. Or sets of GPUs with ``/`` between them, each as in ``--gpus``; they
            keep their order, and the first GPU is rank 0.
        links: kinds of links to use instead, as in ``--links``.

    Raises:
        UsageError: `text` is none of these, no set is joined, or there are too many sets.
        TopologyError: links do not join the GPUs of a named set.
    """
    found = _parse_sets(topology, text, links)
    if not found:
        least = {"connected": 3, "all": 2}.get(text, text.partition("..")[0])
        joined = f"links of {links}" if links else "its fast links" if text == "connected" else "any of its links"
        raise UsageError(
            f"{topology.name} has no set of {least} or more GPUs that {joined} join",
            where=f"--allocations {text}",
            hint="smaller sets as 2..3, other links with --links, or sets by name as 0,1/2,3",
        )
    return found


def _parse_sets(topology: Topology, text: str, links: str | None) -> list[Allocation]:
    several = len(with_gpus(topology)) > 1
    if text == "connected" and several:
        # Fast links do not leave a server, so one server of each class has all sets.
        return connected_allocations(only_gpus(topology, one_of_each_class(topology)), links)
    if text == "connected":
        return connected_allocations(topology, links)
    if text == "all" and several:
        return _cluster_allocations(topology, set(range(2, len(topology.gpus) + 1)), links)
    if text == "all":
        return _grow_sets(topology, links, set(range(2, len(topology.gpus) + 1)), through_gaps=True)
    sizes = _SIZES.fullmatch(text)
    if sizes:
        low, high = int(sizes[1]), int(sizes[2])
        if not 1 <= low <= high <= len(topology.gpus):
            raise UsageError(
                f"{topology.name} has {len(topology.gpus)} GPUs, sizes run from 1 to that",
                where=f"--allocations {text}",
                hint=_HINT,
            )
        if several:
            return _cluster_allocations(topology, set(range(low, high + 1)), links)
        return _grow_sets(topology, links, set(range(low, high + 1)), through_gaps=True)
    if re.fullmatch("[0-9]{1,6}", text):
        raise UsageError(
            f"`{text}` may be a number of GPUs or the number of one GPU",
            where=f"--allocations {text}",
            hint=f"sets of {text} GPUs are {text}..{text}; the set of GPU {text} alone is --gpus {text}",
        )
    if not text.strip() or ".." in text:
        raise UsageError("these are not allocations", where=f"--allocations {text}", hint=_HINT)
    found: dict[str, Allocation] = {}
    for part in text.split("/"):
        gpus = tuple(parse_gpus(topology, part))
        graph = plan_graph(topology, gpus, links)
        found.setdefault(fingerprint(graph), Allocation(gpus, graph, fingerprint(graph)))
    return list(found.values())


def _cluster_allocations(topology: Topology, sizes: set[int], links: str | None) -> list[Allocation]:
    """Returns allocations of a machine with several servers. Of sets with one graph, the set on the fewest servers."""
    found: dict[str, Allocation] = {}
    for gpus, graph in sorted(cluster_sets(topology, sizes, links), key=lambda one: len(spread(topology, one[0]))):
        name = fingerprint(graph)
        found.setdefault(name, Allocation(gpus, graph, name))
    return sorted(found.values(), key=lambda a: len(a.gpus))


def connected_allocations(topology: Topology, links: str | None = None) -> list[Allocation]:
    """Returns every distinct set of 3 or more GPUs that the fast links (or `links`) join, by size and first GPU set.

    Raises:
        UsageError: there are too many sets.
    """
    wanted = set(range(3, len(topology.gpus) + 1))
    return _grow_sets(topology, fast_links(topology) if links is None else links, wanted, through_gaps=False)


def _grow_sets(topology: Topology, links: str | None, wanted: set[int], *, through_gaps: bool) -> list[Allocation]:
    """Grows sets by one GPU at a time, and returns one set of each orbit under the machine's symmetry.

    Of interchangeable GPUs (`twins`) a set has the first ones, so a switch with 72 GPUs takes 72 steps, not 2^72.

    Args:
        wanted: the sizes of the sets to return.
        through_gaps: also grow sets that links do not join, because a larger set may be joined. This is not needed if
            links are equal in both directions: a joined set then always has a GPU without which it is still joined.
    """
    names = [v.name for v in topology.gpus]
    place = {name: i for i, name in enumerate(names)}
    alike = twins(topology, links)
    orbit: list[tuple[str, ...]] = [()]
    distinct: dict[str, Allocation] = {}
    tried = 0
    for size in range(1, max(wanted, default=0) + 1):
        grown: dict[str, tuple[str, ...]] = {}
        sets = dict.fromkeys(
            tuple(sorted({*gpus, name}, key=place.__getitem__)) for gpus in orbit for name in names if name not in gpus
        )
        foremost = [gpus for gpus in sets if _is_foremost(gpus, alike)]
        tried += len(foremost)
        if tried > _MAX_SETS:
            raise UsageError(
                f"{topology.name} has more than {_MAX_SETS} sets of up to {size} GPUs to look at",
                where="--allocations",
                hint="choose smaller sizes, such as 2..4, or name the sets",
            )
        for gpus in foremost:
            key = _marked_fingerprint(topology, gpus, links)
            if key in grown:
                continue
            graph = _graph(topology, gpus, links)
            if graph is None and not through_gaps:
                continue
            grown[key] = gpus
            if graph is not None and size in wanted and _is_joined(graph):
                name = fingerprint(graph)
                distinct.setdefault(name, Allocation(gpus, graph, name))
        orbit = list(grown.values())
    return sorted(distinct.values(), key=lambda a: (len(a.gpus), [place[g] for g in a.gpus]))


def twins(topology: Topology, links: str | None = None) -> list[list[str]]:
    """Returns the classes of two or more interchangeable GPUs: GPUs of a server with equal links to the same vertices.

    Args:
        links: kinds of links that count, as in ``--links`` (default: all).
    """
    kinds = None if links in (None, "all") else {word.strip() for word in str(links).split(",")}
    near: dict[str, list[tuple[str, str, str, object]]] = {v.name: [] for v in topology.gpus}
    for link in topology.links:
        if kinds is not None and link.kind.value not in kinds:
            continue
        for own, other, way in ((link.src, link.dst, "out"), (link.dst, link.src, "in")):
            if own in near:
                near[own].append((other, way, link.kind.value, link.gbps))
    server = {name: server for server, members in topology.servers.items() for name in members}
    classes: dict[object, list[str]] = {}
    for name, ends in near.items():
        classes.setdefault((server.get(name), tuple(sorted(ends, key=repr))), []).append(name)
    return [members for members in classes.values() if len(members) > 1]


def _is_foremost(gpus: Sequence[str], twins: Sequence[Sequence[str]]) -> bool:
    """Returns whether the members of each class that are in the set are the first ones of that class."""
    chosen = set(gpus)
    for members in twins:
        count = sum(1 for name in members if name in chosen)
        if any(name not in chosen for name in members[:count]):
            return False
    return True


def _marked_fingerprint(topology: Topology, gpus: Sequence[str], links: str | None) -> str:
    """Returns the fingerprint of the machine with this set marked. It is equal for sets that a symmetry exchanges."""
    chosen = set(gpus)
    kinds = None if links in (None, "all") else {word.strip() for word in str(links).split(",")}
    order = [*gpus, *(v.name for v in topology.vertices if v.name not in chosen)]
    known = {v.name: v for v in topology.vertices}
    vertices = [known[name] for name in order]
    number = {name: i for i, name in enumerate(order)}
    ends = [
        (number[k.src], number[k.dst], k.kind, k.gbps) for k in topology.links if kinds is None or k.kind.value in kinds
    ]
    if len(topology.servers) > 1:
        # Servers are vertices here, because plans use other links within a server than between servers.
        for name, members in sorted(topology.servers.items()):
            ends += [(number[member], len(vertices), LinkKind.C2C, topology.links[0].gbps) for member in members]
            vertices.append(Vertex(name, VertexKind.CPU))
    graph_links = tuple(GraphLink(i, *end) for i, end in enumerate(ends))
    return fingerprint(PlanGraph(topology.name, len(gpus), tuple(vertices), ("",) * len(vertices), graph_links))


def fast_links(topology: Topology) -> str | None:
    """Returns the fast kinds of links as a --links list, or None (the default rules) if the machine has none."""
    kinds = [k.value for k in _FAST if any(link.kind is k for link in topology.links)]
    return ",".join(kinds) or None


def _graph(topology: Topology, gpus: Sequence[str], links: str | None) -> PlanGraph | None:
    try:
        return plan_graph(topology, gpus, links)
    except TopologyError:
        return None


def _is_joined(graph: PlanGraph) -> bool:
    """Returns whether every GPU reaches every other one. `plan_graph` ignores the directions of links."""
    try:
        Net.of(graph).require_connected()
    except PackingError:
        return False
    return True
