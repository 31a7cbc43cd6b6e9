"""Finds the symmetry of a network that repeats parts at several levels: GPUs in servers, servers in racks, and so on.

Folding a net (`collc.topology.fold`) finds twins at every level, with all vertices that belong to each twin: the
servers of one switch, the pods of one core, the planes of aggregation and core switches. Twins can be rotated. If twins
contain equal twins of a lower level, as every pod contains the same servers, the lower twins of all copies rotate
together, so that all rotations commute. A part that a loss changed is no twin of any other part. It stays in place, and
so does every part that contains it.
"""

from __future__ import annotations

from collections import defaultdict

from collc.packing.symmetry.refine import Automorphism, Refiner
from collc.topology.fold import Folded

# A rotation as the list of its cycles.
Cycles = list[tuple[int, ...]]


def nested_symmetry(refiner: Refiner, root: int | None) -> list[Automorphism]:
    """Returns rotations of twins of all levels, the highest level first. Each is an automorphism of the net.

    Args:
        refiner: the refiner of the net.
        root: a rank that no automorphism may move.
    """
    net = refiner.net
    kinds = ["root" if v == root else "rank" if v < net.nranks else "forwards" for v in range(net.nverts)]
    between: dict[tuple[int, int], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for tail, head, cap in zip(net.tails, net.heads, net.caps, strict=True):
        between[min(tail, head), max(tail, head)][tail > head].append(str(cap))
    labels = {pair: (",".join(sorted(up)), ",".join(sorted(down))) for pair, (up, down) in between.items()}
    found: list[Automorphism] = []
    turned: set[frozenset[int]] = set()
    for twins in reversed(Folded(kinds, labels, joined=True).twins):
        if frozenset(twins[0]) in turned:
            continue
        cycles = list(twins)
        for outer in found:
            cycles = _with_copies(cycles, outer)
        turned.update(map(frozenset, cycles))
        image = list(range(net.nverts))
        for cycle in cycles:
            for v, w in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
                image[v] = w
        automorphism = refiner.automorphism(image, len(twins[0]))
        if automorphism is not None:
            found.append(automorphism)
    return found


def _with_copies(cycles: Cycles, outer: Automorphism) -> Cycles:
    """Returns the rotation together with its images under all powers of `outer`, if these move other vertices."""
    moved = {v for cycle in cycles for v in cycle}
    if all(outer.vertices[v] in moved for v in moved):
        return cycles
    found, copy = list(cycles), cycles
    for _ in range(outer.order - 1):
        copy = [tuple([outer.vertices[v] for v in cycle]) for cycle in copy]
        if copy[0][0] in moved:
            break
        found += copy
    return found
