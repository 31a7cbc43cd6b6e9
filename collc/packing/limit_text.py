"""Describes the limit of a plan by GPUs and links, for readers who do not know certificates."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from collc.packing.explain import binding
from collc.packing.model import Cut, Partition, Plan
from collc.topology.model import PlanGraph, Vertex, VertexKind

# A longer list of names ends with "and N more".
_NAMED = 6


def limit_in_words(graph: PlanGraph, plan: Plan) -> str:
    """Returns a sentence, without its full stop, about the links that limit the rate, from the plan's certificate."""
    if isinstance(plan.certificate, Cut):
        return _cut(graph, plan, plan.certificate)
    if isinstance(plan.certificate, Partition):
        return _partition(graph, plan, plan.certificate)
    links = list(binding(graph, plan).gain)
    if len(links) == 1:
        return f"the link {link_name(graph, links[0])} of {_number(graph.links[links[0]].gbps)} GB/s is full"
    return f"{len(links)} links are full: {_list([link_name(graph, link) for link in links])}"


def in_switch_in_words(graph: PlanGraph, plan: Plan) -> str:
    """Returns a sentence about the rate with sums and copies inside a switch; empty if the plan has no such rate."""
    in_switch = plan.in_switch
    if in_switch is None:
        return ""
    can = " and ".join(
        word for word, wanted in (("sums", plan.collective.reduces), ("copies", plan.collective.spreads)) if wanted
    )
    kind = "the best of their kind" if in_switch.optimal else f"of at most {_number(in_switch.bound)}"
    return (
        f"{can.capitalize()} inside {graph.vertices[in_switch.switch].name} (NVLS), with `compile --in-switch`, would "
        f"reach {_number(in_switch.rate)} GB/s, {kind}; no schedule at all exceeds {_number(in_switch.cut_bound)}."
    )


def vertices_in_words(graph: PlanGraph, vertices: Iterable[int]) -> str:
    """Returns the names of a set of vertices as a list in English.

    A server whose GPUs are all in the set is named instead of them, if the graph has several servers and this one has
    several GPUs. Vertices that forward are named only if the set has no GPU.
    """
    chosen = set(vertices)
    names = []
    for server in dict.fromkeys(graph.servers):
        its_gpus = {v for v in graph.ranks if graph.servers[v] == server}
        if server and len(its_gpus) > 1 and its_gpus <= chosen and len(set(graph.servers)) > 1:
            names.append(server)
            chosen -= its_gpus
    gpus = [graph.vertices[v].name for v in sorted(chosen) if v < graph.nranks]
    return _list([*names, *gpus]) if names or gpus else _list(own_names(graph, sorted(chosen)))


def link_name(graph: PlanGraph, link: int) -> str:
    """Returns a text such as ``gpu0 > gpu1``, with the names of the topology.

    A link between the two halves of one vertex is the memory of a CPU: ``the memory of cpu0``.
    """
    src, dst = own_names(graph, (graph.links[link].src, graph.links[link].dst))
    return f"{src} > {dst}" if src != dst else f"the memory of {src}"


def own_names(graph: PlanGraph, vertices: Iterable[int]) -> list[str]:
    """Returns the names of vertices in the topology, where a vertex NAME+in or NAME+out of the plan is NAME."""
    return [_own_name(graph, graph.vertices[v]) for v in vertices]


def _own_name(graph: PlanGraph, vertex: Vertex) -> str:
    name, _, way = vertex.name.rpartition("+")
    if vertex.kind is VertexKind.GPU or way not in ("in", "out"):
        return vertex.name
    other = f"{name}+{'out' if way == 'in' else 'in'}"
    split = vertex.kind is VertexKind.NIC or any(v.name == other for v in graph.vertices)
    return name if split else vertex.name


def _cut(graph: PlanGraph, plan: Plan, cut: Cut) -> str:
    side = set(cut.side)
    rest = set(range(len(graph.vertices))) - side
    links = list(binding(graph, plan).gain)
    leads_out = bool(links) and graph.links[links[0]].src in side
    inside = sum(1 for v in side if v < graph.nranks)
    # The side with fewer GPUs is easier to picture. Among equals, the side whose GPUs these links touch is named.
    sides = [(inside, -_touched(graph, links, side), side, leads_out)]
    sides.append((graph.nranks - inside, -_touched(graph, links, rest), rest, not leads_out))
    _, _, smaller, way = min(sides, key=lambda found: found[:2])
    total = sum((graph.links[link].gbps for link in links), Fraction(0))
    text = f"{_number(total)} GB/s lead {'out of' if way else 'into'} {vertices_in_words(graph, smaller)}"
    if 0 < len(links) <= 3:
        text += f" ({', '.join(link_name(graph, link) for link in links)})"
    if plan.collective.per_rank:
        what = "the results for" if plan.collective.inward else "the data of"
        return f"{text}, and {what} {inside} of {graph.nranks} GPUs must take that way"
    return f"{text}, and {'the whole sum' if plan.collective.inward else 'all data'} must take that way"


def _touched(graph: PlanGraph, links: list[int], side: set[int]) -> int:
    ends = {v for link in links for v in (graph.links[link].src, graph.links[link].dst)}
    return sum(1 for v in ends & side if v < graph.nranks)


def _partition(graph: PlanGraph, plan: Plan, partition: Partition) -> str:
    bound = binding(graph, plan)
    total = sum((graph.links[link].gbps for link in bound.gain), Fraction(0))
    parts = len(partition.parts)
    alone = all(len([v for v in part if v < graph.nranks]) == 1 for part in partition.parts)
    if alone:
        where = f"between the {parts} GPUs"
    else:
        where = "between " + ", ".join(f"{{{vertices_in_words(graph, part)}}}" for part in partition.parts[:_NAMED])
        where += ", ..." if parts > _NAMED else ""
    text = f"{_number(total)} GB/s of links {where}"
    if parts == 2:
        return f"{text}, and each byte goes over them there and back"
    again = 2 * (parts - 1)
    return f"{text}, and all_reduce moves each byte {again} times over them ({parts - 1} to a root, {parts - 1} back)"


def _list(names: list[str]) -> str:
    if len(names) > _NAMED + 2:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)


def _number(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.5g}"
