"""Positions the vertices of a server: sockets above, then PCIe switches, GPUs and NICs, and NVSwitches below.

A unit is about a pixel on a large screen. Boxes have the coordinates of their centers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collc.show import mesh
from collc.show.drawing import FAST, Drawing
from collc.topology.model import LinkKind, VertexKind

COLUMN = 74.0  # from one GPU or NIC to the next
BOX = (64.0, 30.0)
NIC_BOX = (64.0, 26.0)
BAR = 26.0  # the height of sockets and switches
ROW = 66.0  # from one row of the PCIe tree to the next
MARGIN = 18.0
TITLE = 30.0


@dataclass(frozen=True)
class Box:
    """A vertex in the picture: its center, width and height."""

    vertex: int
    x: float
    y: float
    w: float
    h: float


@dataclass(frozen=True)
class Room:
    """The inside of a server: its boxes, relative to its upper left corner, and its size."""

    boxes: tuple[Box, ...]
    width: float
    height: float

    def to_json(self) -> dict[str, Any]:
        """Returns the size and the boxes as rows of vertex, x, y, width, height."""
        rows = [[b.vertex, round(b.x, 1), round(b.y, 1), round(b.w, 1), round(b.h, 1)] for b in self.boxes]
        return {"w": round(self.width, 1), "h": round(self.height, 1), "boxes": rows}


@dataclass
class _Tree:
    """The PCIe tree of a server: the parent of each vertex, and its distance from its root."""

    parent: dict[int, int]
    depth: dict[int, int]
    roots: list[int]

    def children(self, vertex: int) -> list[int]:
        return [child for child, parent in self.parent.items() if parent == vertex]


def furnish(drawing: Drawing, server: str) -> Room:
    """Returns the positions of the vertices of one server."""
    members = drawing.servers[server]
    inside = set(members)
    near: dict[int, dict[int, LinkKind]] = {v: {} for v in members}
    for a, b, kind, _ in (drawing.links[i] for i in drawing.links_of(server)):
        if a in inside and b in inside and (kind in FAST or b not in near[a]):
            near[a][b] = kind
            near[b].setdefault(a, kind)
    kinds = {v: drawing.vertices[v].kind for v in members}
    tree = _host_tree(members, near, kinds)
    leaves = _leaves(tree, members, near, kinds)
    gpus = [v for v in leaves if kinds[v] is VertexKind.GPU]
    joined = {v: [w for w, kind in near[v].items() if kind in FAST and kinds[w] is VertexKind.GPU] for v in gpus}
    spots = mesh.positions(gpus, joined)
    leaves = _by_columns(leaves, tree, spots)
    flat = all(height == 0.0 for _, height in spots.values())
    levels = max((tree.depth[v] for v in tree.depth if v not in leaves), default=-1) + 1
    top = TITLE + MARGIN + levels * ROW
    # NICs are above a mesh, so that no link of the mesh is drawn across them.
    lower = top if flat or len(gpus) == len(leaves) else top + 0.8 * ROW
    tall = 0.0 if flat else max(150.0, 36.0 * len(gpus))
    boxes: dict[int, Box] = {}
    xs = _columns(leaves, spots)
    for v in leaves:
        w, h = BOX if v in spots else NIC_BOX
        boxes[v] = Box(v, MARGIN + BOX[0] / 2 + xs[v], lower + spots[v][1] * tall if v in spots else top, w, h)
    _place_bars(tree, boxes, leaves)
    bottom = _place_below(members, near, boxes, lower + tall)
    width = max((b.x + b.w / 2 for b in boxes.values()), default=BOX[0]) + MARGIN
    return Room(tuple(boxes[v] for v in members), width, bottom + BOX[1] / 2 + MARGIN)


def _place_below(
    members: tuple[int, ...], near: dict[int, dict[int, LinkKind]], boxes: dict[int, Box], bottom: float
) -> float:
    """Places the remaining vertices, the NVSwitches, as bars below their GPUs, and returns the lowest height."""
    placed = list(boxes.values())
    bottom += 0.15 * ROW
    for v in (v for v in members if v not in boxes):
        under = [boxes[w] for w in near[v] if w in boxes] or placed
        left = min((b.x for b in under), default=MARGIN + BOX[0] / 2) - BOX[0] / 2
        right = max((b.x for b in under), default=MARGIN + BOX[0] / 2) + BOX[0] / 2
        bottom += ROW if len(boxes) == len(placed) else BAR + 14
        boxes[v] = Box(v, (left + right) / 2, bottom, right - left, BAR)
    return bottom


def _host_tree(members: tuple[int, ...], near: dict[int, dict[int, LinkKind]], kinds: dict[int, VertexKind]) -> _Tree:
    """Returns the tree of vertices below the sockets, breadth first; without sockets, below the PCIe switches."""
    host = (LinkKind.PCIE, LinkKind.C2C, LinkKind.NVLINK, LinkKind.XGMI)
    roots = [v for v in members if kinds[v] is VertexKind.CPU]
    if not roots:
        roots = [
            v for v in members if kinds[v] is VertexKind.SWITCH and any(k is LinkKind.PCIE for k in near[v].values())
        ]
    tree = _Tree({}, dict.fromkeys(roots, 0), roots)
    todo = list(roots)
    while todo:
        at = todo.pop(0)
        if kinds[at] in (VertexKind.GPU, VertexKind.NIC):
            continue
        for other, kind in near[at].items():
            if other not in tree.depth and kind in host:
                tree.parent[other] = at
                tree.depth[other] = tree.depth[at] + 1
                todo.append(other)
    return tree


def _leaves(
    tree: _Tree, members: tuple[int, ...], near: dict[int, dict[int, LinkKind]], kinds: dict[int, VertexKind]
) -> list[int]:
    """Returns GPUs and NICs from left to right: below each switch GPUs, then NICs. A NIC of a GPU follows it."""
    found: list[int] = []

    def walk(v: int) -> None:
        if kinds[v] in (VertexKind.GPU, VertexKind.NIC):
            found.append(v)
            return
        below = tree.children(v)
        for child in sorted(below, key=lambda c: (kinds[c] is VertexKind.NIC, places[c])):
            walk(child)

    places = {v: i for i, v in enumerate(members)}
    for root in tree.roots:
        walk(root)
    in_tree = set(found)
    found += [v for v in members if kinds[v] is VertexKind.GPU and v not in in_tree]
    for v in (v for v in members if kinds[v] is VertexKind.NIC and v not in in_tree):
        beside = [found.index(w) for w in near[v] if w in found]
        found.insert(max(beside) + 1 if beside else len(found), v)
    return found


def _by_columns(leaves: list[int], tree: _Tree, spots: dict[int, tuple[float, float]]) -> list[int]:
    """Returns the leaves in the order of the mesh's columns. A NIC follows the GPUs that share its switch."""
    rightmost: dict[int, float] = {}  # switch -> the column of its rightmost GPU
    for v in leaves:
        if v in spots and v in tree.parent:
            parent = tree.parent[v]
            rightmost[parent] = max(spots[v][0], rightmost.get(parent, spots[v][0]))
    key: dict[int, float] = {}
    before = -1.0
    for v in leaves:
        key[v] = spots[v][0] if v in spots else rightmost.get(tree.parent.get(v, -1), before) + 0.01
        before = key[v]
    return sorted(leaves, key=lambda v: key[v])


def _columns(leaves: list[int], spots: dict[int, tuple[float, float]]) -> dict[int, float]:
    """Returns the x of every leaf: the mesh's columns with their distances, and a column for every NIC between them."""
    xs: dict[int, float] = {}
    at, before = 0.0, None
    for i, v in enumerate(leaves):
        column = spots[v][0] if v in spots else None
        wide = 1.0 if before is None or column is None else max(0.9, column - before)
        at += wide * COLUMN if i else 0.0
        xs[v], before = at, column
    return xs


def _place_bars(tree: _Tree, boxes: dict[int, Box], leaves: list[int]) -> None:
    """Places sockets and switches of the tree, each as wide as the vertices below it."""

    def span(v: int) -> tuple[float, float] | None:
        if v in boxes:
            return boxes[v].x - boxes[v].w / 2, boxes[v].x + boxes[v].w / 2
        spans = [s for child in tree.children(v) if (s := span(child)) is not None]
        return (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None

    end = max((b.x + b.w / 2 for b in boxes.values()), default=MARGIN)
    for v in sorted(tree.depth, key=lambda v: (tree.depth[v], v)):
        if v in leaves:
            continue
        found = span(v)
        if found is None:
            found = (end + COLUMN - BOX[0], end + COLUMN)
            end = found[1]
        y = TITLE + MARGIN + tree.depth[v] * ROW
        boxes[v] = Box(v, (found[0] + found[1]) / 2, y, found[1] - found[0], BAR)
