"""Positions the GPUs of a server that links join directly, in columns.

Every GPU has its own column, in the order of the PCIe tree, so that lines from above reach it without crossing another
GPU. Heights are chosen such that no three GPUs are on a line, so that no link is drawn across a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

Neighbors = Mapping[int, Collection[int]]

# The left quad of a cube mesh is a tilted square: (column, height) of its GPUs from left to right. The right quad
# mirrors it, so the links between the quads are horizontal, each at a different height.
_QUAD = ((0.0, 2 / 3), (1.0, 0.0), (2.0, 1.0), (3.0, 1 / 3))
_PAIR_WIDTH = 8.0  # the columns from the left end of the left quad to the right end of the right quad


def positions(gpus: Sequence[int], near: Neighbors) -> dict[int, tuple[float, float]]:
    """Returns (column, height) of each GPU: columns from 0 on, heights from 0 (top) to 1.

    A hybrid cube mesh is drawn as in its documentation, as two quads side by side. GPUs that links join at most in
    pairs are in a row. Any other mesh is on an ellipse, alternating between upper and lower half.

    Args:
        near: the GPUs that fast links join with each GPU.
    """
    quads = cube_mesh(gpus, near)
    if quads is not None:
        left, right = quads
        found = dict(zip(left, _QUAD, strict=True))
        for a, b in zip(left, right, strict=True):
            found[b] = (_PAIR_WIDTH - found[a][0], found[a][1])
        return found
    if all(len(near.get(gpu, ())) <= 1 for gpu in gpus):
        return {gpu: (float(i), 0.0) for i, gpu in enumerate(gpus)}
    return {gpu: (float(i), height) for i, (gpu, height) in enumerate(zip(gpus, _ellipse(len(gpus)), strict=True))}


def _ellipse(count: int) -> list[float]:
    """Returns heights of points on an ellipse, one per column, alternating between upper and lower half."""
    heights = []
    for i in range(count):
        across = (2 * i - (count - 1)) / (count + 0.5)
        bulge = (1 - across * across) ** 0.5
        heights.append(0.5 - 0.5 * bulge if i % 2 == 0 else 0.5 + 0.5 * bulge)
    return heights


def cube_mesh(gpus: Sequence[int], near: Neighbors) -> tuple[list[int], list[int]] | None:
    """Returns the two quads of a hybrid cube mesh (DGX-1), with partners at equal indices; None for other meshes.

    All pairs inside a quad are joined, and each GPU is joined to exactly one GPU of the other quad. The first quad has
    the first GPU and the order of `gpus`.
    """
    if len(gpus) != 8 or any(len(set(near.get(gpu, ())) & set(gpus)) != 4 for gpu in gpus):
        return None
    first, *others = gpus
    for rest in combinations([gpu for gpu in others if gpu in near[first]], 3):
        left = [first, *rest]
        right = [gpu for gpu in gpus if gpu not in left]
        whole = all(b in near[a] for quad in (left, right) for a, b in combinations(quad, 2))
        partners = [[b for b in right if b in near[a]] for a in left]
        if whole and all(len(p) == 1 for p in partners) and len({p[0] for p in partners}) == 4:
            return left, [p[0] for p in partners]
    return None
