"""Finds the number of links of each pair of GPUs, for machines that have the same pairs as a known machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collc.topology.graphs import igraph
from collc.topology.load import load_topology

# The only machine of `collc topologies` whose xGMI links per pair differ.
_KNOWN = "mi250x"
# Isomorphisms to compare at most. The known machine has 16.
_MAX_ISOMORPHISMS = 4096


def known_lanes(
    gpus: Sequence[str], linked: Sequence[tuple[str, str]], home: Mapping[str, int]
) -> dict[tuple[str, str], int] | None:
    """Returns the number of links of each pair, if the known machine has the same pairs under some numbering.

    If several numberings fit, all must give the same counts. A numbering does not fit if two dies of one package, which
    have the most links, are at different NUMA nodes.

    Args:
        gpus: all GPUs.
        linked: the pairs that have a link.
        home: the NUMA node of each GPU; may be empty.

    Returns:
        Pair -> number of links; None if no numbering fits, or if the counts are ambiguous.
    """
    known = load_topology(_KNOWN)
    lanes = {(k.src, k.dst): k.lanes for k in known.links if k.kind.value == "xgmi"}
    if len(gpus) != len(known.gpus) or 2 * len(linked) != len(lanes):
        return None
    names = [v.name for v in known.gpus]
    if gpus == names and all(pair in lanes for pair in linked):
        return {pair: lanes[pair] for pair in linked}  # the driver's own order
    graph = igraph.Graph(n=len(gpus), edges=[(gpus.index(a), gpus.index(b)) for a, b in linked])
    model = igraph.Graph(n=len(names), edges=[(names.index(a), names.index(b)) for a, b in lanes if a < b])
    if not graph.isomorphic(model):
        return None
    maps = model.get_isomorphisms_vf2(graph)
    most = max(lanes.values())
    found = set()
    for image in maps[:_MAX_ISOMORPHISMS]:
        counts = tuple(lanes[names[image[gpus.index(a)]], names[image[gpus.index(b)]]] for a, b in linked)
        in_package = [pair for pair, count in zip(linked, counts, strict=True) if count == most]
        if all(home.get(a) == home.get(b) for a, b in in_package):
            found.add(counts)
    return dict(zip(linked, found.pop(), strict=True)) if len(found) == 1 else None
