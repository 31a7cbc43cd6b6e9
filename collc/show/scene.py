"""Lays out a picture: frames of servers, boxes, lines. The page and static figures draw the same scene.

Servers are in rows. The switches that servers share are bars below the row, from the first server to the last one. If
there are several rows, a trunk on the left joins the bars of a switch. If there are many servers, they are folded: a
server is a small frame with a dot per GPU, and switches with equal neighbors share one bar.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collc.show.drawing import Drawing
from collc.show.place import Room, furnish
from collc.topology.model import VertexKind

# More servers than this are folded, unless the machine has few vertices.
OPEN_SERVERS = 4
OPEN_BOXES = 160
GAP = 20.0
FOLDED = (132.0, 58.0)
PIP = 9.0
RAIL = 20.0  # the height of a shared switch
STEP = 28.0  # the distance between shared switches
TRUNK = 12.0


@dataclass(frozen=True)
class Frame:
    """A server: its upper left corner, its size, and whether it is folded."""

    server: str
    x: float
    y: float
    w: float
    h: float
    folded: bool


@dataclass(frozen=True)
class Shape:
    """A box: the vertices that it represents, its center and size, and its text.

    A box with role `bar` is a shared switch, `trunk` joins the bars of a switch, and `pip` is a GPU of a folded server.
    """

    vertices: tuple[int, ...]
    x: float
    y: float
    w: float
    h: float
    text: str
    role: str = "box"


@dataclass(frozen=True)
class Line:
    """Links that are drawn as one line from (x1, y1) to (x2, y2). `bend` shifts its middle to the right of it."""

    links: tuple[int, ...]
    x1: float
    y1: float
    x2: float
    y2: float
    bend: float = 0.0


@dataclass(frozen=True)
class Scene:
    """All parts of a picture, and its size."""

    width: float
    height: float
    frames: tuple[Frame, ...]
    shapes: tuple[Shape, ...]
    lines: tuple[Line, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the scene for the page's script, rounded to a tenth of a pixel."""

        def near(*values: float) -> list[float]:
            return [round(v, 1) for v in values]

        return {
            "w": round(self.width, 1),
            "h": round(self.height, 1),
            "frames": [[f.server, *near(f.x, f.y, f.w, f.h), int(f.folded)] for f in self.frames],
            "shapes": [[list(s.vertices), *near(s.x, s.y, s.w, s.h), s.text, s.role] for s in self.shapes],
            "lines": [[list(n.links), *near(n.x1, n.y1, n.x2, n.y2, n.bend)] for n in self.lines],
        }


@dataclass
class _Draft:
    """A scene under construction. `at` has the boxes of each vertex: its own box, or the bars of its group by row."""

    drawing: Drawing
    frames: list[Frame] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    at: dict[int, list[Shape]] = field(default_factory=dict)
    row: dict[int, int] = field(default_factory=dict)
    folded: dict[int, Frame] = field(default_factory=dict)

    def add(self, shape: Shape) -> None:
        self.shapes.append(shape)
        if shape.role in ("box", "bar"):
            for v in shape.vertices:
                self.at.setdefault(v, []).append(shape)


def scene(drawing: Drawing, only: str | None = None) -> Scene:
    """Returns the scene of a machine.

    Args:
        only: a server, to show only this server, opened, and the switches that it shares with others.
    """
    servers = dict(drawing.servers) if only is None else {only: drawing.servers[only]}
    opened = set(servers)
    if len(servers) > OPEN_SERVERS and len(drawing.vertices) > OPEN_BOXES / 4:
        opened = set()
    rooms = {name: furnish(drawing, name) for name in opened}
    draft = _Draft(drawing)
    groups, upper = _shared(drawing, servers, drawing.links_of(only), bundled=not opened)
    width, bottom = _rows(draft, servers, rooms, groups)
    bottom = _upper(draft, upper, width, bottom)
    _connect(draft, servers, drawing.links_of(only))
    return Scene(width + GAP, bottom, tuple(draft.frames), tuple(draft.shapes), tuple(draft.lines))


Group = tuple[int, ...]


def _shared(
    drawing: Drawing, servers: Mapping[str, tuple[int, ...]], links: Sequence[int], *, bundled: bool
) -> tuple[dict[Group, set[str]], list[Group]]:
    """Returns groups of vertices outside the servers: those linked to servers, with the servers, and those above them.

    Args:
        bundled: vertices with equal neighbors form one group.
    """
    home = {v: name for name, members in servers.items() for v in members}
    outside = drawing.outside
    reached: dict[int, set[str]] = {}
    above: dict[int, set[int]] = {}
    for a, b, _, _ in (drawing.links[i] for i in links):
        for v, other in ((a, b), (b, a)):
            if v in outside and other in home:
                reached.setdefault(v, set()).add(home[other])
            elif v in outside and other in outside:
                above.setdefault(v, set()).add(other)
    groups = _equal(reached, bundled, sorted(reached))
    top = sorted(v for v in above if v not in reached)
    if len(servers) == 1 and len(drawing.servers) > 1:
        top = []
    return {g: reached[g[0]] for g in groups}, _equal(above, bundled, top)


def _equal(near: Mapping[int, Collection[Any]], bundled: bool, vertices: Iterable[int]) -> list[Group]:
    found: dict[Any, list[int]] = {}
    for v in vertices:
        found.setdefault(frozenset(near[v]) if bundled else v, []).append(v)
    return [tuple(group) for group in found.values()]


def _rows(
    draft: _Draft, servers: Mapping[str, tuple[int, ...]], rooms: Mapping[str, Room], groups: Mapping[Group, set[str]]
) -> tuple[float, float]:
    """Places servers in rows, with shared switches below each row. Returns the width and the bottom."""
    sizes = {name: (rooms[name].width, rooms[name].height) if name in rooms else FOLDED for name in servers}
    area = sum((w + GAP) * (h + GAP + STEP * len(groups) / 2) for w, h in sizes.values())
    opened_sizes = [name for name in sizes if name in rooms]
    limit = max([(3.0 * area) ** 0.5, 1300.0 if opened_sizes else 0.0, *(w for w, _ in sizes.values())])
    rows: list[list[str]] = [[]]
    used = 0.0
    for name, (w, _) in sizes.items():
        if rows[-1] and used + w > limit:
            rows.append([])
            used = 0.0
        rows[-1].append(name)
        used += w + GAP
    trunks = len(groups) * TRUNK if len(rows) > 1 else 0.0
    left, y, width = GAP + trunks, GAP, 0.0
    spans: dict[Group, list[float]] = {}
    for number, row in enumerate(rows):
        x = left
        for name in row:
            w, h = sizes[name]
            frame = Frame(name, x, y, w, h, name not in rooms)
            draft.frames.append(frame)
            _fill(draft, frame, servers[name], rooms.get(name), number)
            x += w + GAP
        width = max(width, x - GAP)
        y += max(sizes[name][1] for name in row) + GAP + RAIL / 2
        for i, (group, reached) in enumerate(groups.items()):
            if reached.isdisjoint(row):
                continue
            ends = [f for f in draft.frames if f.server in row and f.server in reached]
            x1 = left - (i + 1) * TRUNK if len(rows) > 1 else min(f.x for f in ends)
            x2 = max(f.x + f.w for f in ends)
            draft.add(Shape(group, (x1 + x2) / 2, y, x2 - x1, RAIL, _called(draft.drawing, group), "bar"))
            spans.setdefault(group, []).append(y)
            for v in group:
                draft.row[v] = number
            y += STEP
        y += GAP * 0.8
    for group, heights in spans.items():
        if len(heights) > 1:
            x = left - (list(groups).index(group) + 1) * TRUNK + TRUNK / 4
            y1, y2 = heights[0], heights[-1]
            draft.add(Shape(group, x, (y1 + y2) / 2, TRUNK / 2, y2 - y1, "", "trunk"))
    return width, y


def _called(drawing: Drawing, group: Group) -> str:
    names = [drawing.vertices[v].name for v in group]
    return (
        names[0]
        if len(names) == 1
        else f"{names[0]} to {names[-1]}: {len(names)} {drawing.vertices[group[0]].kind.value}es"
    )


def _fill(draft: _Draft, frame: Frame, members: tuple[int, ...], room: Room | None, row: int) -> None:
    """Places the inside of one server."""
    for v in members:
        draft.row[v] = row
    if room is not None:
        for b in room.boxes:
            text = draft.drawing.label(b.vertex, frame.server)
            draft.add(Shape((b.vertex,), frame.x + b.x, frame.y + b.y, b.w, b.h, text))
        return
    gpus = [v for v in members if draft.drawing.vertices[v].kind is VertexKind.GPU]
    for v in members:
        draft.folded[v] = frame
    across = 9
    for i, v in enumerate(gpus[: 2 * across]):
        x = frame.x + 14 + (i % across) * (PIP + 4)
        draft.add(Shape((v,), x, frame.y + 33 + (i // across) * (PIP + 4), PIP, PIP, "", "pip"))


def _upper(draft: _Draft, upper: list[Group], width: float, y: float) -> float:
    """Places the switches above the shared ones, in rows at the bottom. Returns the new bottom."""
    if not upper:
        return y
    across = max(1, int((width - GAP) // 150))
    y += GAP * 1.4
    for i, group in enumerate(upper):
        x = GAP + 75 + (i % across) * 150
        text = _called(draft.drawing, group)
        draft.add(Shape(group, x, y + (i // across) * 2 * STEP, 140, RAIL + 4, text))
    return y + ((len(upper) - 1) // across + 1) * 2 * STEP + GAP


def _connect(draft: _Draft, servers: Mapping[str, tuple[int, ...]], links: Sequence[int]) -> None:
    """Adds the lines of these links: inside servers, from servers to shared switches, and between switches."""
    home = {v: name for name, members in servers.items() for v in members}
    bundles: dict[tuple[object, object, str], list[int]] = {}
    for i in links:
        a, b, kind, _ = draft.drawing.links[i]
        if not ((a in draft.at or a in draft.folded) and (b in draft.at or b in draft.folded)):
            continue
        if a in draft.folded and b in draft.folded and home[a] == home[b]:
            continue
        key = (_end(draft, a), _end(draft, b), kind.value)
        bundles.setdefault(key, []).append(i)
    bars = [shape for shape in draft.shapes if shape.role == "bar"]
    for bundle in bundles.values():
        a, b, _, _ = draft.drawing.links[bundle[0]]
        draft.lines.append(_line(draft, bars, tuple(bundle), a, b, home))


def _end(draft: _Draft, vertex: int) -> object:
    """Returns the end of a line: a folded server, the group of a switch, or the vertex itself."""
    if vertex in draft.folded:
        return draft.folded[vertex].server
    return draft.at[vertex][0].vertices


def _line(draft: _Draft, bars: list[Shape], links: tuple[int, ...], a: int, b: int, home: Mapping[int, str]) -> Line:
    if a in draft.folded or b in draft.folded:
        return _line_of_folded(draft, bars, links, a, b)
    one, two = _boxes(draft, a, b)
    x1, y1, x2, y2 = _meet(one, two)
    if abs(one.y - two.y) < 1 and min(one.w, two.w) > 3 * one.h and _blocked(draft, one, two, (x1, y1, x2, y2), 0.0):
        return _arc(links, one, two)
    between_servers = a in home and b in home and home[a] != home[b]
    bend = 0.0
    if between_servers or _blocked(draft, one, two, (x1, y1, x2, y2), 0.0):
        bend = _free_bend(draft, one, two, (x1, y1, x2, y2))
    return Line(links, x1, y1, x2, y2, bend)


def _arc(links: tuple[int, ...], one: Shape, two: Shape) -> Line:
    """Returns a line between two bars of one row, as an arc above the bars."""
    way = 1 if two.x > one.x else -1
    x1, x2 = one.x + way * one.w / 4, two.x - way * two.w / 4
    return Line(links, x1, one.y - one.h / 2, x2, two.y - two.h / 2, -way * 16.0)


def _boxes(draft: _Draft, a: int, b: int) -> tuple[Shape, Shape]:
    """Returns the boxes that a line joins. Of a switch with a bar in every row it takes the bar in the other's row."""
    ones, twos = draft.at[a], draft.at[b]
    return min(((one, two) for one in ones for two in twos), key=lambda pair: _apart(*pair))


def _apart(one: Shape, two: Shape) -> float:
    # Bars are below their servers, so a bar below the other end is preferred to a nearer bar above it.
    down = two.y - one.y if two.role == "bar" else one.y - two.y if one.role == "bar" else 0.0
    return abs(one.y - two.y) + (1e6 if down < 0 else 0.0)


def _line_of_folded(draft: _Draft, bars: list[Shape], links: tuple[int, ...], a: int, b: int) -> Line:
    """Returns a line from the lower edge of a folded server straight down to a bar, or to another server."""
    if a in draft.folded and b in draft.folded:
        one, two = draft.folded[a], draft.folded[b]
        x1, y1, x2, y2 = one.x + one.w / 2, one.y + one.h, two.x + two.w / 2, two.y + two.h
        return Line(links, x1, y1, x2, y2, 40.0 if x1 > x2 else -40.0)
    inner, outer = (a, b) if a in draft.folded else (b, a)
    frame = draft.folded[inner]
    ends_at = draft.at[outer]
    below = [s for s in ends_at if s.y > frame.y] or ends_at
    bar = min(below, key=lambda s: abs(s.y - frame.y))
    known = [s.vertices for s in bars if s.y > frame.y]
    place = known.index(bar.vertices) if bar.vertices in known else 0
    count = len(dict.fromkeys(known)) or 1
    x = frame.x + frame.w * (place % count + 1) / (count + 1)
    x = min(max(x, bar.x - bar.w / 2 + 4), bar.x + bar.w / 2 - 4)
    ends = (x, frame.y + frame.h, x, bar.y - bar.h / 2)
    return Line(links, *ends) if a == inner else Line(links, ends[2], ends[3], ends[0], ends[1])


def _meet(one: Shape, two: Shape) -> tuple[float, float, float, float]:
    """Returns the ends of a line between two boxes. The line is upright if one box is above the other."""
    left = max(one.x - one.w / 2, two.x - two.w / 2)
    right = min(one.x + one.w / 2, two.x + two.w / 2)
    if right - left >= 8 and abs(one.y - two.y) > (one.h + two.h) / 2:
        narrow = one if one.w <= two.w else two
        x = min(max(narrow.x, left + 4), right - 4)
        down = 1 if two.y > one.y else -1
        return x, one.y + down * one.h / 2, x, two.y - down * two.h / 2
    return (*_edge(one, two), *_edge(two, one))


def _edge(box: Shape, other: Shape) -> tuple[float, float]:
    """Returns the point of a box's edge where a line from its center to another box crosses the edge."""
    dx, dy = other.x - box.x, other.y - box.y
    if box.w > 3 * box.h and abs(dy) > 1:  # a line leaves a bar below or above the other end
        x = min(max(other.x, box.x - box.w / 2 + 8), box.x + box.w / 2 - 8)
        return x, box.y + (box.h / 2 if dy > 0 else -box.h / 2)
    scale = min(
        (box.w / 2) / abs(dx) if dx else float("inf"),
        (box.h / 2) / abs(dy) if dy else float("inf"),
    )
    return (box.x, box.y) if scale == float("inf") else (box.x + dx * scale, box.y + dy * scale)


def _point(ends: tuple[float, float, float, float], bend: float, t: float) -> tuple[float, float]:
    """Returns a point of a line. A bent line is a quadratic curve."""
    x1, y1, x2, y2 = ends
    long = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 or 1.0
    cx = (x1 + x2) / 2 - (y2 - y1) / long * bend * 2
    cy = (y1 + y2) / 2 + (x2 - x1) / long * bend * 2
    u = 1 - t
    return u * u * x1 + 2 * u * t * cx + t * t * x2, u * u * y1 + 2 * u * t * cy + t * t * y2


def _blocked(draft: _Draft, one: Shape, two: Shape, ends: tuple[float, float, float, float], bend: float) -> bool:
    """Returns whether a line would cross a box. Upright lines may pass behind the bars of switches."""
    upright = abs(ends[0] - ends[2]) < 1 and not bend
    points = [_point(ends, bend, i / 24) for i in range(1, 24)]
    for box in draft.shapes:
        if box is one or box is two or box.role == "trunk" or (upright and box.w > 3 * box.h):
            continue
        w, h = box.w / 2 + 3, box.h / 2 + 3
        if any(abs(x - box.x) < w and abs(y - box.y) < h for x, y in points):
            return True
    return False


def _free_bend(draft: _Draft, one: Shape, two: Shape, ends: tuple[float, float, float, float]) -> float:
    """Returns the least bend without a crossing of a box, to the same side for both directions of a link."""
    side = 1.0 if (ends[0], ends[1]) < (ends[2], ends[3]) else -1.0
    for bend in (24, -24, 40, -40, 60, -60, 85, -85, 120, -120, 160, -160):
        if not _blocked(draft, one, two, ends, side * bend):
            return side * bend
    return side * 24
