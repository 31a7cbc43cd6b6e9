"""Checks every claim of a plan, computed from the graph in exact arithmetic.

It shares no state with any solver. `collc.packing.plan` returns no plan that has not passed this check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain

from collc.checker.certificates import certificate_bound
from collc.checker.in_switch import check_in_switch
from collc.checker.orbits import OrbitSums, check_orbits
from collc.collectives.model import Collective
from collc.errors import CertificateError
from collc.limits import common_denominator, spend
from collc.packing.model import Flow, Hop, Plan, Tree
from collc.topology.model import PlanGraph


def check_packing(graph: PlanGraph, plan: Plan, where: str = "plan") -> None:
    """Checks that `plan` is feasible on `graph` and that its certificate proves its bound.

    Checks the shapes of trees, paths, weights, the load of every link, and the bound. Takes O(hops + links), plus
    shortest paths and arborescences if the certificate is prices.

    Args:
        where: the place of the plan, for errors.

    Raises:
        CertificateError: a claim does not hold. The error names the place.
    """
    _check_header(graph, plan, where)
    if graph.nranks == 1:
        claims = (plan.rate, plan.bound, plan.certificate, plan.orbits, plan.in_switch)
        if any(x is not None for x in claims) or plan.trees or plan.flows:
            raise CertificateError("a single GPU has no rate, bound, certificate, trees or flows", where=where)
        return
    if plan.rate is None or plan.bound is None or plan.certificate is None:
        raise CertificateError("rate, bound and certificate must be given", where=where)
    if plan.rate <= 0:
        raise CertificateError(f"the rate {plan.rate} is not positive", where=f"{where}.rate_gbps")
    # Weights are added as integers in units of 1/scale GB/s, because a large plan has millions of hops.
    sums = _orbit_sums(graph, plan, where)
    weights = chain((t.weight for t in plan.trees), (f.weight for f in plan.flows))
    scale = common_denominator(chain(weights, {*sums.load, *sums.per_root}))
    load = _units(sums.load, scale)
    if plan.collective.uses_trees:
        _check_trees(graph, plan, load, _units(sums.per_root, scale), scale, where)
    else:
        _check_flows(graph, plan, load, scale, where)
    for link in graph.links:
        if load[link.id] * link.gbps.denominator > link.gbps.numerator * scale:
            raise CertificateError(
                f"link {link.id} ({graph.vertices[link.src].name} -> {graph.vertices[link.dst].name}) carries "
                f"{Fraction(load[link.id], scale)} GB/s of {link.gbps}",
                where=where,
            )
    bound = certificate_bound(graph, plan.collective, plan.root, plan.certificate, f"{where}.certificate")
    if bound != plan.bound:
        raise CertificateError(f"the certificate proves {bound}, not {plan.bound}", where=f"{where}.bound_gbps")
    if plan.rate > bound:
        raise CertificateError(f"the rate {plan.rate} exceeds the proven bound {bound}", where=f"{where}.rate_gbps")
    if plan.optimal and plan.rate != bound:
        raise CertificateError(f"not proven optimal: rate {plan.rate}, bound {bound}", where=f"{where}.optimal")
    if plan.in_switch is not None:
        check_in_switch(graph, plan, plan.in_switch, f"{where}.in_switch")


def _check_header(graph: PlanGraph, plan: Plan, where: str) -> None:
    if plan.stopped_by_clock and plan.optimal:
        raise CertificateError("an optimal plan has nothing left to search for", where=f"{where}.stopped")
    if plan.collective.rooted:
        if plan.root is None or not 0 <= plan.root < graph.nranks:
            raise CertificateError(f"{plan.collective.value} needs a root among the ranks", where=f"{where}.root")
    elif plan.root is not None:
        raise CertificateError(f"{plan.collective.value} has no root", where=f"{where}.root")
    if plan.collective.uses_trees and plan.flows:
        raise CertificateError(f"{plan.collective.value} is packed as trees, not flows", where=f"{where}.flows")
    if not plan.collective.uses_trees and (plan.trees or plan.orbits is not None):
        place = f"{where}.{'trees' if plan.trees else 'orbits'}"
        raise CertificateError(f"{plan.collective.value} is packed as flows, not trees", where=place)


def _orbit_sums(graph: PlanGraph, plan: Plan, where: str) -> OrbitSums:
    """Checks the plan's orbits and returns the sums over their trees; zeros without orbits."""
    if plan.orbits is None:
        return OrbitSums([Fraction(0)] * len(graph.links), [Fraction(0)] * graph.nranks)
    shapes = _Shapes(graph, plan)
    for i, orbit in enumerate(plan.orbits.orbits):
        shapes.check(orbit.tree, f"{where}.orbits.trees[{i}]")
    sums = check_orbits(graph, plan.orbits, f"{where}.orbits")
    if plan.root is not None and any(g[plan.root] != plan.root for g in plan.orbits.generators):
        raise CertificateError(f"a generator moves the root {plan.root}", where=f"{where}.orbits.generators")
    return sums


def _units(values: Sequence[Fraction], scale: int) -> list[int]:
    """Returns the values as multiples of 1/scale."""
    return [value.numerator * (scale // value.denominator) for value in values]


def _check_trees(graph: PlanGraph, plan: Plan, load: list[int], per_root: list[int], scale: int, where: str) -> None:
    """Adds the loads of `plan.trees` to `load` and `per_root`, in 1/scale GB/s, and checks the weights per root."""
    shapes = _Shapes(graph, plan)
    for i, tree in enumerate(plan.trees):
        shapes.check(tree, f"{where}.trees[{i}]")
        weight = tree.weight.numerator * (scale // tree.weight.denominator)
        per_root[tree.root] += weight
        use: Counter[int] = Counter()
        for hops in (tree.reduce, tree.broadcast):
            use.update(chain.from_iterable(hop.links for hop in hops))
        for link, count in use.items():
            load[link] += weight * count
    assert plan.rate is not None
    if plan.collective.per_rank:
        share = plan.rate / graph.nranks
        for rank, total in enumerate(per_root):
            if total * share.denominator != share.numerator * scale:
                raise CertificateError(
                    f"the trees of root {rank} ({graph.vertices[rank].name}) weigh {Fraction(total, scale)}, "
                    f"rate/N is {share}",
                    where=f"{where}.trees",
                )
    elif Fraction(sum(per_root), scale) != plan.rate:
        found = Fraction(sum(per_root), scale)
        raise CertificateError(f"the weights add up to {found}, the rate is {plan.rate}", where=f"{where}.trees")


class _Shapes:
    """Checks trees: root, weight, and that each phase spans the ranks over paths of the graph."""

    def __init__(self, graph: PlanGraph, plan: Plan) -> None:
        self._graph, self._plan = graph, plan
        self._good: set[Hop] = set()
        self._seen: set[int] = set()  # identities of hops already checked, because trees of large plans share hops

    def check(self, tree: Tree, place: str) -> None:
        graph, plan = self._graph, self._plan
        if not 0 <= tree.root < graph.nranks:
            raise CertificateError(f"no rank {tree.root}", where=f"{place}.root")
        if plan.root is not None and tree.root != plan.root:
            raise CertificateError(f"the root is {tree.root}, the plan's is {plan.root}", where=f"{place}.root")
        if tree.weight <= 0:
            raise CertificateError(f"the weight {tree.weight} is not positive", where=f"{place}.weight_gbps")
        spend(graph.nranks + sum(4 + len(hop.links) for hop in chain(tree.reduce, tree.broadcast)))
        _check_phases(graph, plan.collective, tree, place)
        for phase, hops in (("reduce", tree.reduce), ("broadcast", tree.broadcast)):
            for j, hop in enumerate(hops):
                if id(hop) not in self._seen:
                    if hop not in self._good:
                        _check_path(graph, hop, f"{place}.{phase}[{j}]")
                        self._good.add(hop)
                    self._seen.add(id(hop))


def _check_phases(graph: PlanGraph, collective: Collective, tree: Tree, place: str) -> None:
    for phase, hops, needed in (
        ("reduce", tree.reduce, collective.reduces),
        ("broadcast", tree.broadcast, collective.spreads),
    ):
        if not needed:
            if hops:
                raise CertificateError(f"{collective.value} has no {phase} phase", where=f"{place}.{phase}")
            continue
        upward = phase == "reduce"
        parent = [-1] * graph.nranks
        for j, hop in enumerate(hops):
            if not (0 <= hop.src < graph.nranks and 0 <= hop.dst < graph.nranks):
                raise CertificateError(f"no rank {max(hop.src, hop.dst)}", where=f"{place}.{phase}[{j}]")
            child, above = (hop.src, hop.dst) if upward else (hop.dst, hop.src)
            if child == tree.root:
                raise CertificateError("the root has a parent", where=f"{place}.{phase}[{j}]")
            if parent[child] >= 0:
                raise CertificateError(
                    f"{graph.vertices[child].name} has a second parent", where=f"{place}.{phase}[{j}]"
                )
            parent[child] = above
        _check_spanning(graph, parent, tree.root, f"{place}.{phase}")


def _check_spanning(graph: PlanGraph, parent: Sequence[int], root: int, where: str) -> None:
    joined = [False] * graph.nranks
    joined[root] = True
    for rank in graph.ranks:
        chain = []
        v = rank
        while not joined[v]:
            chain.append(v)
            if parent[v] < 0:
                raise CertificateError(f"{graph.vertices[v].name} is not joined to the root", where=where)
            if len(chain) > graph.nranks:
                raise CertificateError(f"{graph.vertices[rank].name} hangs on a cycle", where=where)
            v = parent[v]
        for v in chain:
            joined[v] = True


def _check_path(graph: PlanGraph, hop: Hop, where: str) -> None:
    inner = _walk(graph, hop.src, hop.dst, hop.links, where)
    for v in inner:
        if v < graph.nranks:
            raise CertificateError(f"the path passes through rank {v} ({graph.vertices[v].name})", where=where)


def _walk(graph: PlanGraph, src: int, dst: int, links: Iterable[int], where: str) -> list[int]:
    """Returns the inner vertices of a path.

    Raises:
        CertificateError: the path does not lead from `src` to `dst`, or it has a gap or a repeated vertex.
    """
    at, seen = src, {src: None}
    for link in links:
        if not 0 <= link < len(graph.links):
            raise CertificateError(f"no link {link} in this graph", where=where)
        if graph.links[link].src != at:
            name = graph.vertices[at].name
            raise CertificateError(f"link {link} does not start at {name}, where the path is", where=where)
        at = graph.links[link].dst
        if at in seen:
            raise CertificateError(f"the path comes back to {graph.vertices[at].name}", where=where)
        seen[at] = None
    if at != dst or src == dst:
        raise CertificateError(
            f"the path ends at {graph.vertices[at].name}, not at {graph.vertices[dst].name}", where=where
        )
    return list(seen)[1:-1]


def wanted_pairs(collective: Collective, nranks: int, root: int | None) -> list[tuple[int, int]]:
    """Returns the pairs (source, destination) of ranks of a flow collective."""
    if collective is Collective.SCATTER:
        return [(root or 0, v) for v in range(nranks) if v != root]
    if collective is Collective.GATHER:
        return [(v, root or 0) for v in range(nranks) if v != root]
    if collective is Collective.ALLTOALL:
        return [(u, v) for u in range(nranks) for v in range(nranks) if u != v]
    assert collective is Collective.SENDRECV
    return [(u, (u + 1) % nranks) for u in range(nranks)]


def _check_flows(graph: PlanGraph, plan: Plan, load: list[int], scale: int, where: str) -> None:
    assert plan.rate is not None
    spend(graph.nranks**2)
    amount = dict.fromkeys(wanted_pairs(plan.collective, graph.nranks, plan.root), 0)  # in units of 1/scale GB/s
    for i, flow in enumerate(plan.flows):
        spend(4 + len(flow.links))
        _check_flow(graph, flow, amount, f"{where}.flows[{i}]")
        weight = flow.weight.numerator * (scale // flow.weight.denominator)
        amount[flow.src, flow.dst] += weight
        for link in flow.links:
            load[link] += weight
    share = plan.rate if plan.collective is Collective.SENDRECV else plan.rate / graph.nranks
    for (src, dst), weight in amount.items():
        if weight * share.denominator != share.numerator * scale:
            gets = Fraction(weight, scale)
            raise CertificateError(
                f"{graph.vertices[src].name} -> {graph.vertices[dst].name} gets {gets} GB/s, needs {share}",
                where=f"{where}.flows",
            )


def _check_flow(graph: PlanGraph, flow: Flow, amount: dict[tuple[int, int], int], where: str) -> None:
    if (flow.src, flow.dst) not in amount:
        raise CertificateError(f"rank {flow.src} sends nothing to rank {flow.dst} in this collective", where=where)
    if flow.weight <= 0:
        raise CertificateError(f"the weight {flow.weight} is not positive", where=where)
    _walk(graph, flow.src, flow.dst, flow.links, where)
