"""Schedules and programs for tests, made without any packing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from collc.collectives.blocks import block_layout, contributors
from collc.collectives.model import COMPILED, Collective
from collc.ir.build import build
from collc.ir.nodes import Program
from collc.lowering.fuse_copies import fuse_copies
from collc.lowering.merge_channels import merge_channels
from collc.lowering.share_hops import share_hops
from collc.options import CUDA, HOST, Target
from collc.pipeline import passes
from collc.schedule.model import Part, Schedule

TREE_COLLECTIVES = COMPILED


def random_tree(nranks: int, root: int, rng: random.Random) -> list[tuple[int, int]]:
    """(parent, child) edges of a random spanning tree."""
    inside, outside = [root], [r for r in range(nranks) if r != root]
    rng.shuffle(outside)
    edges = []
    for rank in outside:
        edges.append((rng.choice(inside), rank))
        inside.append(rank)
    return edges


def chain(nranks: int, root: int) -> list[tuple[int, int]]:
    """(parent, child) edges of a path through all ranks."""
    return [(r - 1, r) for r in range(root + 1, nranks)] + [(r + 1, r) for r in range(root)]


def schedule_of(
    collective: Collective, nranks: int, trees: Sequence[Sequence[tuple[int, int]]], root: int | None = None
) -> Schedule:
    """A schedule over explicit trees of (parent, child) edges; widths are 1 : 2 : 3 ... within a block."""
    parts = []
    groups: dict[int, list[Sequence[tuple[int, int]]]] = {}
    roots = []
    for tree in trees:
        children = {child for _, child in tree}
        tree_root = next((r for r in range(nranks) if r not in children), 0)
        roots.append(tree_root)
        groups.setdefault(tree_root if collective.per_rank else 0, []).append(tree)
    for block, members in sorted(groups.items()):
        total = len(members) * (len(members) + 1) // 2
        at = Fraction(0)
        for number, tree in enumerate(members, 1):
            end = at + Fraction(number, total)
            children = {child for _, child in tree}
            part_root = next((r for r in range(nranks) if r not in children), 0)
            up = tuple((child, parent) for parent, child in reversed(tree)) if collective.reduces else ()
            down = tuple(tree) if collective.spreads else ()
            parts.append(Part(block, at, end, part_root, up, down))
            at = end
    return Schedule(collective, root, nranks, tuple(parts))


def random_schedule(collective: Collective, nranks: int, seed: int, trees: int = 3) -> Schedule:
    """Random trees: of one root for rooted collectives, of every rank for per-rank ones, of random roots otherwise."""
    rng = random.Random(seed)
    if collective.per_rank:
        roots = [r for r in range(nranks) for _ in range(rng.randint(1, 2))]
    elif collective.rooted:
        roots = [seed % nranks] * trees
    else:
        roots = [rng.randrange(nranks) for _ in range(trees)]
    root = seed % nranks if collective.rooted else None
    return schedule_of(collective, nranks, [random_tree(nranks, r, rng) for r in roots], root)


def ring_schedule(collective: Collective, order: Sequence[int], parts: int) -> Schedule:
    """Each block, or part of one for each root, in equal parts along a ring of ranks."""
    n, found = len(order), []
    for root in range(n):
        at = order.index(root)
        ring = [*order[at:], *order[:at]]
        up = tuple(itertools.pairwise([*ring[1:], root])) if collective.reduces else ()
        down = tuple(itertools.pairwise(ring)) if collective.spreads else ()
        for part in range(parts):
            lo, hi = Fraction(part, parts), Fraction(part + 1, parts)
            if collective.per_rank:
                found.append(Part(root, lo, hi, root, up, down))
            else:
                found.append(Part(0, (root + lo) / n, (root + hi) / n, root, up, down))
    return Schedule(collective, None, n, tuple(found))


def in_rounds(
    collective: Collective, order: Sequence[int], parts: int, channels: int, slots: int, chunk_bytes: int
) -> Program:
    """Returns a ring whose `parts` take turns in `channels` channels. All roots share the FIFO of a hop."""
    built = fuse_copies(build(ring_schedule(collective, order, parts), chunk_bytes=chunk_bytes, slots=slots))
    return share_hops(merge_channels(built, limit=parts), limit=channels)


def lowered(schedule: Schedule, target: Target = HOST) -> list[tuple[str, Program]]:
    """Every stage of the lowering by name."""
    program = build(schedule, chunk_bytes=target.chunk_bytes)
    stages = [("build", program)]
    for name, run in passes(target):
        program = run(program)
        stages.append((name, program))
    return stages


def final(schedule: Schedule, target: Target = HOST) -> Program:
    """The lowered program."""
    return lowered(schedule, target)[-1][1]


__all__ = [
    "CUDA",
    "HOST",
    "TREE_COLLECTIVES",
    "chain",
    "final",
    "in_rounds",
    "lowered",
    "random_schedule",
    "random_tree",
    "ring_schedule",
    "schedule_of",
]


def check_sets(program: Program, outputs: list[np.ndarray]) -> None:
    """Asserts that outputs of `run_on_sets` hold exactly what the collective asks for."""
    layout = block_layout(program.collective, program.nranks, program.root)
    everyone = (1 << program.nranks) - 1
    for rank, output in enumerate(outputs):
        blocks = layout.out_blocks[rank]
        count = len(output) // (max(blocks.values()) + 1) if blocks else 0
        for block, offset in blocks.items():
            owner = next((r for r in range(program.nranks) if block in layout.in_blocks[r]), 0)
            reduced = contributors(program.collective, program.nranks) is not None
            assert set(output[offset * count : (offset + 1) * count]) == {everyone if reduced else 1 << owner}
