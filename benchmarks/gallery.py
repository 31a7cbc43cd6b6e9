"""Writes the gallery: a figure of every machine of `collc topologies`, and a page that shows them."""

from __future__ import annotations

from pathlib import Path

from collc.show.drawing import of_topology
from collc.show.static import draw_machine
from collc.topology import zoo
from collc.topology.load import load_topology

FIGURES = Path("figures/machines")
HEAD = """\
# Gallery: the machines that come with collc

`make docs` writes this page and its figures from the files in `topologies/`, with the code of `collc show NAME
--svg`. The two lanes of a line are the two directions of a link, and the legend has the speeds per direction.
[show.md](show.md) explains the pictures.
"""


def text() -> str:
    """Returns the page."""
    parts = [HEAD]
    for name in zoo.names():
        parts.append(f"## {name}\n\n{zoo.title(name)}.\n\n![{name}]({FIGURES / name}.svg)\n")
    return "\n".join(parts)


def write(folder: Path) -> None:
    """Writes gallery.md and its figures into the folder."""
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    for name in zoo.names():
        draw_machine(folder / FIGURES / f"{name}.svg", of_topology(load_topology(name)))
    (folder / "gallery.md").write_text(text(), encoding="utf-8")
