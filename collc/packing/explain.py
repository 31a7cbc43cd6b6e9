"""Describes a plan and its limits: depth, loads of links, binding links, and the gain from one more link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from collc.collectives.model import Collective
from collc.packing.model import Cut, Hop, Partition, Plan, Prices, Tree
from collc.packing.solvers.bound import unit_cost
from collc.packing.solvers.cuts import broadcast_cut
from collc.packing.solvers.exact import outward, upper_bound
from collc.packing.solvers.network import Net
from collc.packing.symmetry.orbits import orbit_loads
from collc.topology.model import LinkKind, PlanGraph

# `one_more_link` computes the bound again for each link, so it only looks at graphs of up to _TRY_LIMIT ranks, and at
# _TRY_LINKS links.
_TRY_LIMIT = 16
_TRY_LINKS = 24


# Kind of link -> the fact that a probe may assume about it, and the option of `collc probe` that sets it.
_ASSUMED = {
    LinkKind.NVLINK: ("NVLink speed", "--gpu-model"),
    LinkKind.NVSWITCH: ("NVLink speed", "--gpu-model"),
    LinkKind.XGMI: ("xGMI links and speed", "--gpu-model, --from `amd-smi topology`"),
    LinkKind.C2C: ("chip-to-chip speed", "--gpu-model"),
    LinkKind.PCIE: ("PCIe speed", "--gpu-model, --from `nvidia-smi -q -x`"),
    LinkKind.NET: ("network", "--rails or --fabric"),
}


@dataclass(frozen=True)
class Binding:
    """The links that limit a plan. `gain[link]` is the increase of the bound per GB/s that the link gets."""

    text: str
    gain: dict[int, Fraction]


def assumed_facts(graph: PlanGraph) -> list[tuple[str, str]]:
    """Returns the assumed facts that bounds of a graph rest on, each with the option of `collc probe` that sets it."""
    return list(dict.fromkeys(_ASSUMED[kind] for kind in graph.assumes))


def plan_depth(plan: Plan) -> int:
    """Returns the depth of the deepest tree; for flows, the most links on a path."""
    if plan.flows:
        return max(len(f.links) for f in plan.flows)
    return max((tree.depth for tree, _ in counted_trees(plan)), default=0)


def counted_trees(plan: Plan) -> list[tuple[Tree, int]]:
    """Returns the trees of a plan, one of each orbit, with the number of trees that each represents."""
    return [(tree, 1) for tree in plan.trees] + [(o.tree, o.count) for o in (plan.orbits.orbits if plan.orbits else ())]


def link_loads(graph: PlanGraph, plan: Plan) -> list[Fraction]:
    """Returns the load of every link in GB/s if the plan runs at its rate."""
    load = [Fraction(0)] * len(graph.links)
    for tree in plan.trees:
        for hop in (*tree.reduce, *tree.broadcast):
            for link in hop.links:
                load[link] += tree.weight
    for flow in plan.flows:
        for link in flow.links:
            load[link] += flow.weight
    if plan.orbits is not None:
        load = [a + b for a, b in zip(load, orbit_loads(graph, plan.orbits), strict=True)]
    return load


def common_denominator(plan: Plan) -> int:
    """Returns the least D such that every weight is a multiple of rate / D. Tables of shares count in these units."""
    denominator = 1
    if plan.rate:
        for weight in [t.weight for t, _ in counted_trees(plan)] or [f.weight for f in plan.flows]:
            part = weight / plan.rate
            denominator = denominator * part.denominator // _gcd(denominator, part.denominator)
    return denominator


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def binding(graph: PlanGraph, plan: Plan) -> Binding:
    """Returns the links that limit the rate according to the plan's certificate, with a text about them."""
    assert plan.certificate is not None
    if isinstance(plan.certificate, Cut):
        return _cut_binding(graph, plan, plan.certificate)
    if isinstance(plan.certificate, Partition):
        return _partition_binding(graph, plan.certificate)
    return _prices_binding(graph, plan, plan.certificate)


def _cut_binding(graph: PlanGraph, plan: Plan, cut: Cut) -> Binding:
    side = set(cut.side)
    inside = sum(1 for r in graph.ranks if r in side)
    inward = plan.collective.inward
    out = [x.id for x in graph.links if x.src in side and x.dst not in side]
    into = [x.id for x in graph.links if x.dst in side and x.src not in side]
    links = into if inward else out
    if plan.collective.both_phases and _capacity(graph, into) < _capacity(graph, out):
        links, inward = into, True
    each = Fraction(graph.nranks, inside) if plan.collective.per_rank else Fraction(1)
    way = "into" if inward else "out of"
    text = f"{_capacity(graph, links)} GB/s lead {way} {_names(graph, cut.side)}"
    return Binding(text, dict.fromkeys(links, each))


def _partition_binding(graph: PlanGraph, partition: Partition) -> Binding:
    place = {v: i for i, part in enumerate(partition.parts) for v in part}
    out = [x.id for x in graph.links if x.src in place and place[x.src] != place.get(x.dst)]
    into = [x.id for x in graph.links if x.dst in place and place[x.dst] != place.get(x.src)]
    links, way = (out, "out of") if _capacity(graph, out) <= _capacity(graph, into) else (into, "into")
    k = len(partition.parts)
    parts = ", ".join(_names(graph, part) for part in partition.parts[:4]) + (", ..." if k > 4 else "")
    text = f"{_capacity(graph, links)} GB/s lead {way} {k} parts: {parts}"
    return Binding(text, dict.fromkeys(links, Fraction(1, 2 * (k - 1))))


def _prices_binding(graph: PlanGraph, plan: Plan, prices: Prices) -> Binding:
    price = [Fraction(0)] * len(graph.links)
    for link, value in prices.prices:
        price[link] = value
    unit = unit_cost(Net.of(graph), price, plan.collective, plan.root)
    assert unit
    gain = {link: value / unit for link, value in prices.prices if value}
    return Binding("one link has a price" if len(gain) == 1 else f"{len(gain)} links have a price", gain)


def in_switch_bound(graph: PlanGraph, collective: Collective) -> Fraction | None:
    """Returns the bound in GB/s for every schedule of an all_reduce, even with sums and copies inside switches.

    It is the least one-way cut. Returns None for other collectives, whose cuts bound every schedule already, and if no
    switch can add or copy.
    """
    if not collective.both_phases or graph.nranks < 2:
        return None
    if not any(v.reduce or v.multicast for v in graph.vertices):
        return None
    net = Net.of(graph)
    return min(broadcast_cut(net, 0)[0], broadcast_cut(net.reversed(), 0)[0])


def one_more_link(graph: PlanGraph, plan: Plan, bound: Binding) -> tuple[int, Fraction, Fraction] | None:
    """Returns (link, GB/s added, new bound) of the best single addition to a binding link, in both directions.

    The addition has the speed of the thinnest link of the same kind. Returns None if the graph is large or no single
    addition helps.
    """
    if graph.nranks > _TRY_LIMIT or plan.bound is None or not plan.collective.uses_trees:
        return None
    best: tuple[int, Fraction, Fraction] | None = None
    for link in list(bound.gain)[:_TRY_LINKS]:
        kind = graph.links[link].kind
        more = min(x.gbps for x in graph.links if x.kind is kind)
        ends = {graph.links[link].src, graph.links[link].dst}
        links = tuple(
            replace(x, gbps=x.gbps + more) if {x.src, x.dst} == ends and x.kind is kind else x for x in graph.links
        )
        net = outward(Net.of(replace(graph, links=links)), plan.collective)
        value, _ = upper_bound(net, plan.collective, plan.root)
        if value > plan.bound and (best is None or value > best[2]):
            best = link, more, value
    return best


def describe_tree(graph: PlanGraph, tree: Tree) -> str:
    """Returns a tree on one line: the root, then each parent with its children. Mirrored phases are written once."""
    down = _nested(graph, tree.root, [(h.src, h.dst) for h in tree.broadcast])
    up = _nested(graph, tree.root, [(h.dst, h.src) for h in tree.reduce])
    if not tree.reduce:
        return down
    if not tree.broadcast or up == down:
        return up
    return f"up {up}, down {down}"


def _nested(graph: PlanGraph, root: int, edges: list[tuple[int, int]]) -> str:
    children: dict[int, list[int]] = {}
    for parent, child in edges:
        children.setdefault(parent, []).append(child)

    def text(v: int) -> str:
        below = sorted(children.get(v, ()))
        if not below:
            return str(v)
        inner = " ".join(text(c) for c in below)
        return f"{v}({inner})"

    return text(root)


def hop_names(graph: PlanGraph, hop: Hop) -> str:
    """Returns the names of all vertices along a hop, joined by arrows."""
    names = [graph.vertices[hop.src].name, *(graph.vertices[graph.links[x].dst].name for x in hop.links)]
    return " -> ".join(names)


def _capacity(graph: PlanGraph, links: Iterable[int]) -> Fraction:
    return sum((graph.links[x].gbps for x in links), Fraction(0))


def _names(graph: PlanGraph, vertices: Iterable[int]) -> str:
    names = [graph.vertices[v].name for v in vertices]
    shown = names if len(names) <= 8 else [*names[:6], f"... ({len(names)} vertices)"]
    return "{" + " ".join(shown) + "}"
