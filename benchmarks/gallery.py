"""The gallery: a figure of every machine of `collc topologies`, and docs/gallery.md that shows them.

python benchmarks/gallery.py            # writes docs/gallery.md and docs/figures/machines/
"""

from __future__ import annotations

import argparse
from pathlib import Path

from collc.show.drawing import of_topology
from collc.show.static import draw_machine
from collc.topology import zoo
from collc.topology.load import load_topology

ROOT = Path(__file__).parents[1]
FIGURES = Path("figures/machines")
HEAD = """\
# Gallery: the machines that come with collc

`make gallery` writes this page and its figures from the files in `topologies/`, with the code of `collc show NAME
--svg`. Two lanes of a line are the two directions of a link, and the legend has the speeds per direction.
[show.md](show.md) explains the pictures.
"""


def text() -> str:
    """The page."""
    parts = [HEAD]
    for name in zoo.names():
        parts.append(f"## {name}\n\n{zoo.title(name)}.\n\n![{name}]({FIGURES / name}.svg)\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="The folder to write to.")
    docs = parser.parse_args().docs
    (docs / FIGURES).mkdir(parents=True, exist_ok=True)
    for old in (docs / FIGURES).glob("*.svg"):
        old.unlink()
    for name in zoo.names():
        draw_machine(docs / FIGURES / f"{name}.svg", of_topology(load_topology(name)))
    (docs / "gallery.md").write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
