"""The page: one HTML file with its script, its style and its data, that asks no network for anything.

The data stands in a script element of type JSON in which `<`, `>` and `&` are escapes, so no name can end the element.
The page's policy allows exactly the script and the style of this file, by their digests, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collc import __version__
from collc.errors import CollcError
from collc.resources import resource_dir
from collc.show.drawing import Drawing
from collc.show.scene import scene

FORMAT = "collc-show/1"
# Larger pages are refused: browsers would take minutes.
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class View:
    """One tab of the page: its kind ("machine", "plan", "timeline", "results", "program"), its title and its data."""

    kind: str
    title: str
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The view as the page's script reads it."""
        return {"kind": self.kind, "title": self.title, **self.data}


def machine_data(drawing: Drawing) -> dict[str, Any]:
    """A machine with its pictures: all servers and, where they are folded, each one opened.

    Equal servers share one picture: `rooms` has it in places, and `servers` lists for each server the vertices and
    links that its places stand for.
    """
    whole = scene(drawing)
    found: dict[str, Any] = {"machine": drawing.to_json(), "scene": whole.to_json()}
    if any(frame.folded for frame in whole.frames):
        rooms: list[Any] = []
        known: dict[str, int] = {}
        servers = {}
        for name in drawing.servers:
            picture, vertices, links = _in_places(scene(drawing, only=name).to_json(), name)
            key = json.dumps(picture)
            if key not in known:
                known[key] = len(rooms)
                rooms.append(picture)
            servers[name] = {"room": known[key], "vertices": vertices, "links": links}
        found |= {"rooms": rooms, "servers": servers}
    return found


def _in_places(picture: dict[str, Any], name: str) -> tuple[dict[str, Any], list[int], list[int]]:
    """A scene with vertices and links numbered as they come, and what the numbers stand for."""
    vertices: dict[int, int] = {}
    links: dict[int, int] = {}
    for shape in picture["shapes"]:
        shape[0] = [vertices.setdefault(v, len(vertices)) for v in shape[0]]
    for line in picture["lines"]:
        line[0] = [links.setdefault(i, len(links)) for i in line[0]]
    for frame in picture["frames"]:
        frame[0] = ""
    return picture, list(vertices), list(links)


def page(title: str, views: Sequence[View]) -> str:
    """The whole HTML file; the same views give the same bytes.

    Raises:
        CollcError: the data are too large for a page.
    """
    folder = resource_dir("templates") / "show"
    script, look = _part(folder / "page.js"), _part(folder / "page.css")
    data = {"format": FORMAT, "collc": __version__, "title": title, "views": [view.to_json() for view in views]}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    if len(text) > MOST_BYTES:
        raise CollcError(
            f"the page would have {len(text) >> 20} MB", where=title, hint="choose one collective with --collective"
        )
    safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").replace("\x7f", "\\u007f")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(look)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)}</title>\n<style>{look}</style>\n</head>\n<body>\n"
        '<div id="app"><noscript>This page draws with JavaScript.</noscript></div>\n'
        f'<script type="application/json" id="data">{safe}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def _part(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    assert "</script" not in text.lower()
    assert "</style" not in text.lower()
    return text


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
