"""Writes plans as JSON in format ``collc-plan/1``, which `collc plan --json` prints and `collc.checker.plans` reads."""

from __future__ import annotations

from typing import Any

from collc.checker.plans import FORMAT, PlanFile, from_json, parse_plan, verify_document
from collc.checker.staging import host_limit
from collc.collectives.model import Collective
from collc.packing.explain import assumed_facts
from collc.packing.model import Certificate, Cut, InSwitch, Orbits, Partition, Plan, Tree
from collc.topology.canonical import fingerprint
from collc.topology.model import PlanGraph, Vertex
from collc.topology.staging import staged_pairs

__all__ = ["FORMAT", "PlanFile", "from_json", "parse_plan", "plan_file", "to_json", "verify_document"]


def plan_file(graph: PlanGraph, plans: tuple[Plan, ...]) -> PlanFile:
    """Returns plans of `graph` with the fingerprint of the graph."""
    return PlanFile(graph.name, fingerprint(graph), graph, plans)


def to_json(file: PlanFile) -> dict[str, Any]:
    """Returns the document as JSON values, with keys in the order of the format."""
    graph = file.graph
    names = [v.name for v in graph.vertices]
    pairs = staged_pairs(graph)
    return {
        "format": FORMAT,
        "topology": {"name": file.name, "fingerprint": file.fingerprint},
        "ranks": [{"rank": r, "gpu": names[r], "server": graph.servers[r]} for r in graph.ranks],
        "switches": [_switch_json(v) for v in graph.vertices[graph.nranks :]],
        "links": [
            {"id": x.id, "src": names[x.src], "dst": names[x.dst], "kind": x.kind.value, "gbps": str(x.gbps)}
            for x in graph.links
        ],
        **({"host_pairs": [list(pair) for pair in pairs]} if pairs else {}),
        "plans": [_plan_json(graph, plan, names) for plan in file.plans],
    }


def _switch_json(v: Vertex) -> dict[str, Any]:
    row = {"name": v.name, "kind": v.kind.value, "multicast": v.multicast, "reduce": v.reduce}
    return row if v.memory_gbps is None else {**row, "memory_gbps": str(v.memory_gbps)}


def _plan_json(graph: PlanGraph, plan: Plan, names: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "collective": plan.collective.value,
        "root": plan.root,
        "solver": plan.origin,
        "rate_gbps": None if plan.rate is None else str(plan.rate),
        "bound_gbps": None if plan.bound is None else str(plan.bound),
        "optimal": plan.optimal,
        "certificate": None if plan.certificate is None else _certificate_json(plan.certificate, names),
    }
    if graph.assumes:
        result["assumes"] = [noun for noun, _ in assumed_facts(graph)]
    if plan.stopped_by_clock:
        result["stopped"] = "time"
    if (limit := host_limit(graph, plan)) is not None:
        result["host_rate_gbps"] = str(limit[0])
    if plan.in_switch is not None:
        result["in_switch"] = _in_switch_json(plan.in_switch, names)
    if plan.collective.uses_trees:
        result["trees"] = [tree_json(tree, plan.collective) for tree in plan.trees]
        if plan.orbits is not None:
            result["orbits"] = orbits_json(plan.orbits, plan.collective, names)
    else:
        result["flows"] = [[f.src, f.dst, str(f.weight), list(f.links)] for f in plan.flows]
    return result


def _certificate_json(certificate: Certificate, names: list[str]) -> dict[str, Any]:
    if isinstance(certificate, Cut):
        return {"kind": "cut", "side": [names[v] for v in certificate.side]}
    if isinstance(certificate, Partition):
        return {"kind": "partition", "parts": [[names[v] for v in part] for part in certificate.parts]}
    return {"kind": "prices", "prices": {str(link): str(price) for link, price in certificate.prices}}


def _in_switch_json(in_switch: InSwitch, names: list[str]) -> dict[str, Any]:
    return {
        "switch": names[in_switch.switch],
        "rate_gbps": str(in_switch.rate),
        "bound_gbps": str(in_switch.bound),
        "optimal": in_switch.optimal,
        "certificate": _certificate_json(in_switch.prices, names),
        "cut_gbps": str(in_switch.cut_bound),
        "cut": _certificate_json(in_switch.cut, names),
        "heads": [[rank, str(weight)] for rank, weight in in_switch.heads],
    }


def tree_json(tree: Tree, collective: Collective) -> dict[str, Any]:
    """Returns a tree as JSON, with the phases that its collective has."""
    result: dict[str, Any] = {"root": tree.root, "weight_gbps": str(tree.weight)}
    if collective.reduces:
        result["reduce"] = [[h.src, h.dst, list(h.links)] for h in tree.reduce]
    if collective.spreads:
        result["broadcast"] = [[h.src, h.dst, list(h.links)] for h in tree.broadcast]
    return result


def orbits_json(orbits: Orbits, collective: Collective, names: list[str]) -> dict[str, Any]:
    """Returns orbits as JSON: generators as cycles of names, trees with the numbers of their images, loads of links."""
    return {
        "generators": [[[names[v] for v in cycle] for cycle in cycles_of(g)] for g in orbits.generators],
        "trees": [{"count": orbit.count, **tree_json(orbit.tree, collective)} for orbit in orbits.orbits],
        "loads": [{"link": x.link, "count": x.count, "load_gbps": str(x.load)} for x in orbits.loads],
    }


def cycles_of(image: tuple[int, ...]) -> list[list[int]]:
    """Returns the cycles of a permutation, without cycles of one element."""
    cycles, seen = [], set()
    for start, after in enumerate(image):
        if after != start and start not in seen:
            cycle = [start]
            while (after := image[cycle[-1]]) != start:
                cycle.append(after)
            seen.update(cycle)
            cycles.append(cycle)
    return cycles
