"""Where the GPUs of a server stand that links join directly, in a plane of columns.

Every GPU gets a column of its own, in the order that its PCIe tree gives, so that lines from above reach it without
crossing another GPU. Heights are chosen such that no three GPUs are on a line: then no link is drawn across a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

Neighbours = Mapping[int, Collection[int]]

# The left quad of a cube mesh is a tilted square: (column, height) of its GPUs from left to right. The right quad
# mirrors it, so the links between the quads are horizontal, each at a different height.
_QUAD = ((0.0, 2 / 3), (1.0, 0.0), (2.0, 1.0), (3.0, 1 / 3))
_PAIR_WIDTH = 8.0  # columns from the left end of the left quad to the right end of the right quad


def positions(gpus: Sequence[int], near: Neighbours) -> dict[int, tuple[float, float]]:
    """(column, height) of each GPU: columns from 0 on, heights from 0 (top) to 1.

    A hybrid cube mesh stands as its makers draw it, two quads side by side. GPUs that links join in pairs at most stand
    in a row. Any other mesh stands on an ellipse, upper and lower half in turn.
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
    """Heights of points on an ellipse, one per column, upper and lower half in turn."""
    heights = []
    for i in range(count):
        across = (2 * i - (count - 1)) / (count + 0.5)
        bulge = (1 - across * across) ** 0.5
        heights.append(0.5 - 0.5 * bulge if i % 2 == 0 else 0.5 + 0.5 * bulge)
    return heights


def cube_mesh(gpus: Sequence[int], near: Neighbours) -> tuple[list[int], list[int]] | None:
    """The two quads of a hybrid cube mesh (DGX-1), each GPU beside its partner; None if it is no such mesh.

    All pairs inside a quad are joined, and each GPU to exactly one of the other quad. The first quad is that of the
    first GPU; its order is that of `gpus`.
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
