"""Pictures laid out: everything is there, no box covers another, no link is drawn across a GPU or a NIC."""

from __future__ import annotations

from itertools import combinations
from unittest.mock import patch

import pytest
from support.show_inputs import THREE_AND_FIVE, cluster

from collc.show.drawing import Drawing, of_topology
from collc.show.mesh import cube_mesh, positions
from collc.show.scene import Line, Scene, Shape, scene
from collc.topology import zoo
from collc.topology.load import load_topology, loads_topology
from collc.topology.model import Topology, VertexKind


def machine(name: str) -> Topology:
    if name == "3+5":
        return loads_topology(THREE_AND_FIVE)
    return loads_topology(cluster(int(name))) if name.isdecimal() else load_topology(name)


MACHINES = [*zoo.names(), "3+5", "2", "128"]


def points(line: Line) -> list[tuple[float, float]]:
    """The line as the page draws it, without its ends."""
    long = ((line.x2 - line.x1) ** 2 + (line.y2 - line.y1) ** 2) ** 0.5 or 1.0
    cx = (line.x1 + line.x2) / 2 - (line.y2 - line.y1) / long * line.bend * 2
    cy = (line.y1 + line.y2) / 2 + (line.x2 - line.x1) / long * line.bend * 2
    found = []
    for t in (i / 60 for i in range(1, 60)):
        u = 1 - t
        x = u * u * line.x1 + 2 * u * t * cx + t * t * line.x2
        found.append((x, u * u * line.y1 + 2 * u * t * cy + t * t * line.y2))
    return found


def inside(box: Shape, x: float, y: float) -> bool:
    return abs(x - box.x) < box.w / 2 - 1 and abs(y - box.y) < box.h / 2 - 1


def crossed(drawing: Drawing, made: Scene) -> list[str]:
    """Lines across a GPU or a NIC."""
    leaves = [
        s
        for s in made.shapes
        if s.role == "box" and drawing.vertices[s.vertices[0]].kind in (VertexKind.GPU, VertexKind.NIC)
    ]
    return [
        f"{line.links} across {box.text}"
        for line in made.lines
        for box in leaves
        if any(inside(box, x, y) for x, y in points(line))
    ]


def covering(made: Scene) -> list[str]:
    """Boxes that cover each other; a switch's trunk joins its own bars."""
    return [
        f"{a.text} over {b.text}"
        for a, b in combinations([s for s in made.shapes if s.role != "trunk"], 2)
        if abs(a.x - b.x) < (a.w + b.w) / 2 - 0.5 and abs(a.y - b.y) < (a.h + b.h) / 2 - 0.5
    ]


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_drawn_whole(name: str) -> None:
    drawing = of_topology(machine(name))
    made = scene(drawing)
    folded = {f.server for f in made.frames if f.folded}
    assert {f.server for f in made.frames} == set(drawing.servers)
    shown = {v for s in made.shapes for v in s.vertices}
    hidden = {v for server in folded for v in drawing.servers[server]}
    assert set(range(len(drawing.vertices))) - hidden <= shown
    lines = [i for line in made.lines for i in line.links]
    assert len(lines) == len(set(lines))
    home = {v: server for server, members in drawing.servers.items() for v in members}
    within = {i for i, (a, b, _, _) in enumerate(drawing.links) if home.get(a) in folded and home.get(a) == home.get(b)}
    assert set(lines) == set(range(len(drawing.links))) - within
    assert covering(made) == []
    assert crossed(drawing, made) == []
    assert all(s.x - s.w / 2 >= 0 and s.x + s.w / 2 <= made.width for s in made.shapes)
    assert all(s.y - s.h / 2 >= 0 and s.y + s.h / 2 <= made.height for s in made.shapes)


@pytest.mark.parametrize("name", ["gb200-nvl72", "128"])
def test_a_folded_server_opens_to_all_its_parts(name: str) -> None:
    drawing = of_topology(machine(name))
    for server in list(drawing.servers)[:3]:
        made = scene(drawing, only=server)
        assert not any(f.folded for f in made.frames)
        assert set(drawing.servers[server]) <= {v for s in made.shapes for v in s.vertices}
        own = set(drawing.servers[server])
        assert {i for line in made.lines for i in line.links} >= {
            i for i, (a, b, _, _) in enumerate(drawing.links) if a in own and b in own
        }
        assert covering(made) == []
        assert crossed(drawing, made) == []


@pytest.mark.parametrize("name", ["gb200-nvl72", "128", "3+5"])
def test_an_opened_server_needs_only_its_own_links(name: str) -> None:
    """So that pictures of all servers take work in proportion to the links, not to servers times links."""
    drawing = of_topology(machine(name))
    with patch.object(Drawing, "links_of", lambda drawing, _: range(len(drawing.links))):
        expected = {server: scene(drawing, only=server) for server in drawing.servers}
    assert {server: scene(drawing, only=server) for server in drawing.servers} == expected
    counts = [len(drawing.links_of(server)) for server in drawing.servers]
    assert sum(counts) <= len(drawing.links)


def test_a_checker_of_pictures_that_sees_what_is_wrong() -> None:
    drawing = of_topology(machine("dgx1v"))
    made = scene(drawing)
    gpu = next(s for s in made.shapes if s.text == "gpu0")
    across = Line((0,), gpu.x - 100, gpu.y, gpu.x + 100, gpu.y)
    moved = Shape((1,), gpu.x + 5, gpu.y, gpu.w, gpu.h, "gpu1")
    wrong = Scene(made.width, made.height, made.frames, (*made.shapes, moved), (across,))
    assert covering(wrong)
    assert crossed(drawing, wrong)


def test_the_cube_mesh_is_recognized_and_nothing_else() -> None:
    near = {g: set[int]() for g in range(8)}
    for quad in ((0, 1, 2, 3), (4, 5, 6, 7)):
        for a, b in combinations(quad, 2):
            near[a].add(b)
            near[b].add(a)
    for a in range(4):
        near[a].add(a + 4)
        near[a + 4].add(a)
    assert cube_mesh(range(8), near) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert len({x for x, _ in positions(range(8), near).values()}) == 8
    near[0].discard(4)
    near[4].discard(0)
    assert cube_mesh(range(8), near) is None


def test_equal_servers_share_one_picture() -> None:
    from collc.show.page import machine_data

    data = machine_data(of_topology(machine("24")))
    assert len(data["servers"]) == 24
    assert len(data["rooms"]) == 1
