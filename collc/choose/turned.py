"""Graphs whose links are equal both ways, also where a NIC is two vertices, one for each direction."""

from __future__ import annotations

from collections import Counter

from collc.topology.model import PlanGraph


def equal_both_ways(graph: PlanGraph) -> bool:
    """Returns True if every link has an equal link the other way; the two halves of a split vertex count as one."""
    whole = [vertex.name.removesuffix("+in").removesuffix("+out") for vertex in graph.vertices]

    def like(forward: bool) -> Counter[object]:
        ends = ((link, link.src, link.dst) if forward else (link, link.dst, link.src) for link in graph.links)
        return Counter((whole[src], whole[dst], link.kind, link.gbps, link.latency_us) for link, src, dst in ends)

    return like(True) == like(False)
