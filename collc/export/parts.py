"""Cuts a buffer into equal chunks and gives each weighted tree a whole number of them, as MSCCL++ needs it.

`Parts.rate` is the exact rate with the rounded weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from collc.errors import PackingError, UsageError
from collc.packing.model import Plan, Tree
from collc.packing.symmetry.orbits import expand_orbits
from collc.topology.model import LinkKind, PlanGraph

MAX_CHUNKS = 4096
# More chunks are tried until the rate reaches this fraction of the plan's rate.
_NEAR = Fraction(99, 100)


@dataclass(frozen=True, slots=True)
class Part:
    """The chunks [first, first + count) of a block that one tree carries."""

    tree: Tree
    block: int
    first: int
    count: int


@dataclass(frozen=True)
class Parts:
    """All chunks of all blocks. `chunks` is the number of chunks of a block, `rate` the GB/s of the buffer."""

    chunks: int
    parts: tuple[Part, ...]
    rate: Fraction


def cut_into_chunks(graph: PlanGraph, plan: Plan, chunks: int | None = None) -> Parts:
    """Gives each tree of a plan its chunks, in proportion to its weight.

    Args:
        chunks: the number of chunks of each block; None for the smallest power of two that keeps 99% of the rate, or
            else the best one up to `MAX_CHUNKS`.

    Raises:
        UsageError: there are fewer than two GPUs.
        PackingError: the GPUs are on several servers.
    """
    if graph.nranks < 2 or plan.rate is None:
        raise UsageError("a plan for other executors joins two GPUs or more", where=graph.name)
    if any(link.kind is LinkKind.NET for link in graph.links):
        hint = "choose the GPUs of one server with --gpus"
        raise PackingError("only plans inside one server are written in this format", where=graph.name, hint=hint)
    by_block: dict[int, list[Tree]] = defaultdict(list)
    for tree in expand_orbits(graph, plan).trees:
        by_block[tree.root if plan.collective.per_rank else 0].append(tree)
    if chunks is not None:
        return _parts(graph, by_block, chunks)
    best = _parts(graph, by_block, 1)
    for power in range(1, MAX_CHUNKS.bit_length()):
        if best.rate >= plan.rate * _NEAR:
            break
        more = _parts(graph, by_block, 1 << power)
        best = more if more.rate > best.rate else best
    return best


def _parts(graph: PlanGraph, by_block: dict[int, list[Tree]], chunks: int) -> Parts:
    parts: list[Part] = []
    load: dict[int, Fraction] = defaultdict(Fraction)
    for block, trees in sorted(by_block.items()):
        at = 0
        for tree, count in zip(trees, _whole([tree.weight for tree in trees], chunks), strict=True):
            if not count:
                continue
            parts.append(Part(tree, block, at, count))
            at += count
            for hop in (*tree.reduce, *tree.broadcast):
                for link in hop.links:
                    load[link] += Fraction(count, chunks * len(by_block))
    speeds = {link.id: link.gbps for link in graph.links}
    return Parts(chunks, tuple(parts), min(speeds[link] / share for link, share in load.items()))


def _whole(weights: Sequence[Fraction], total: int) -> list[int]:
    """Returns integers in proportion to the weights that add up to `total`. The largest remainders are rounded up."""
    everything = sum(weights, Fraction(0))
    exact = [weight * total / everything for weight in weights]
    counts = [int(share) for share in exact]
    order = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts
