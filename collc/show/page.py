"""Makes the page: one HTML file with its script, style and data, which makes no network requests.

The data is in a script element of type JSON. It escapes `<`, `>` and `&`, so no name can end the element. The page's
policy allows only the script and the style of this file, by their digests.
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
# The largest page, because browsers take minutes for larger ones.
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class View:
    """A tab of the page: its kind ("machine", "plan", "timeline", "results", "program"), its title and its data."""

    kind: str
    title: str
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the view for the page's script."""
        return {"kind": self.kind, "title": self.title, **self.data}


def machine_data(drawing: Drawing) -> dict[str, Any]:
    """Returns a machine with its pictures: all servers, and each server opened if they are folded.

    Equal servers share one picture in `rooms`, with its own numbers of vertices and links. `servers` has for each
    server the vertices and links of these numbers.
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
    """Returns a scene with vertices and links renumbered in their order, and the old number of each."""
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
    """Returns the whole HTML file. Equal views give equal bytes.

    Raises:
        CollcError: the data is too large for a page.
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
