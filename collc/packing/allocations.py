"""All allocations of a machine: one plan per distinct one, and the plan of any GPU set by relabelling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from collc.errors import PackingError, TopologyError
from collc.packing.model import Certificate, Collective, Cut, Flow, Hop, Partition, Plan, Prices, Tree
from collc.packing.solve import plan
from collc.topology.canonical import fingerprint, match
from collc.topology.graph import plan_graph
from collc.topology.model import LinkKind, PlanGraph, Topology

_FAST = (LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI)


@dataclass(frozen=True)
class Allocation:
    """A class of GPU sets whose graphs are the same up to names: `gpus` is one of them, `graph` its graph."""

    gpus: tuple[str, ...]
    graph: PlanGraph
    fingerprint: str


def connected_allocations(
    topology: Topology, links: str | None = None, sizes: Iterable[int] | None = None
) -> list[Allocation]:
    """Every distinct allocation whose GPUs the fast links (or `links`) join, by size and then by first GPU set.

    Grows connected sets by one GPU at a time and keeps one of each orbit of the machine's symmetry, so that a machine
    of 16 alike GPUs costs 16 steps, not 65,536.

    Args:
        sizes: how many GPUs; 3 to all by default.
    """
    names = [v.name for v in topology.gpus]
    wanted = set(range(3, len(names) + 1) if sizes is None else sizes)
    chosen_links = links if links is not None else _fast_links(topology)
    orbit: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
    distinct: dict[str, Allocation] = {}
    for size in range(2, max(wanted, default=0) + 1):
        grown: dict[str, tuple[str, ...]] = {}
        tried: set[tuple[str, ...]] = set()
        for gpus in orbit.values():
            for name in names:
                bigger = tuple(sorted({*gpus, name}, key=names.index))
                if len(bigger) != size or bigger in tried:
                    continue
                tried.add(bigger)
                graph = _graph(topology, bigger, chosen_links)
                if graph is None:
                    continue
                # Idle GPUs as forwarders mark the set within the whole machine.
                whole = fingerprint(plan_graph(topology, bigger, chosen_links, relay=True))
                grown.setdefault(whole, bigger)
                if size in wanted:
                    distinct.setdefault(fingerprint(graph), Allocation(bigger, graph, fingerprint(graph)))
        orbit = grown
    return sorted(distinct.values(), key=lambda a: (len(a.gpus), [names.index(g) for g in a.gpus]))


def _fast_links(topology: Topology) -> str | None:
    """The fast kinds as a --links list, or None (the default rules) on a machine without fast links."""
    kinds = [k.value for k in _FAST if any(link.kind is k for link in topology.links)]
    return ",".join(kinds) or None


def _graph(topology: Topology, gpus: Sequence[str], links: str | None) -> PlanGraph | None:
    try:
        return plan_graph(topology, gpus, links)
    except TopologyError:
        return None


class AllocationPlans:
    """Plans by fingerprint, handed out for any graph that is the same up to names."""

    def __init__(self, solver: str = "exact") -> None:
        self._solver = solver
        self._plans: dict[tuple[str, Collective, int | None], tuple[PlanGraph, Plan]] = {}
        self._first: dict[str, PlanGraph] = {}

    def plan(self, graph: PlanGraph, collective: Collective, root: int | None = None) -> Plan:
        """The plan of `graph`, solved once per class of graphs (and root) and relabelled for the others."""
        key = fingerprint(graph)
        model = self._first.setdefault(key, graph)
        if model is graph:
            return self._solved(key, model, collective, root)
        mapping = match(model, graph)
        if mapping is None:
            raise PackingError("two different graphs share a fingerprint", where=graph.name)
        wanted = None if root is None and not collective.rooted else mapping.index(root or 0)
        return relabelled(self._solved(key, model, collective, wanted), model, graph, mapping)

    def _solved(self, key: str, graph: PlanGraph, collective: Collective, root: int | None) -> Plan:
        place = key, collective, root
        if place not in self._plans:
            self._plans[place] = graph, plan(graph, collective, root, self._solver)
        return self._plans[place][1]


def relabelled(made: Plan, source: PlanGraph, target: PlanGraph, mapping: Sequence[int]) -> Plan:
    """A plan of `source` as one of `target`, where vertex v of `source` is mapping[v] of `target`."""
    place = {(x.src, x.dst, x.kind): x.id for x in target.links}
    link = [place[mapping[x.src], mapping[x.dst], x.kind] for x in source.links]

    def hops(old: tuple[Hop, ...]) -> tuple[Hop, ...]:
        return tuple(Hop(mapping[h.src], mapping[h.dst], tuple(link[x] for x in h.links)) for h in old)

    return replace(
        made,
        root=None if made.root is None else mapping[made.root],
        certificate=None if made.certificate is None else _certificate(made.certificate, link, mapping),
        trees=tuple(Tree(mapping[t.root], t.weight, hops(t.reduce), hops(t.broadcast)) for t in made.trees),
        flows=tuple(
            Flow(mapping[f.src], mapping[f.dst], f.weight, tuple(link[x] for x in f.links)) for f in made.flows
        ),
    )


def _certificate(old: Certificate, link: Sequence[int], mapping: Sequence[int]) -> Certificate:
    if isinstance(old, Cut):
        return Cut(tuple(sorted(mapping[v] for v in old.side)))
    if isinstance(old, Partition):
        return Partition(tuple(tuple(sorted(mapping[v] for v in part)) for part in old.parts))
    return Prices(tuple(sorted((link[x], price) for x, price in old.prices)))
