"""The drawings of README.md and docs/optimal.md, as `collc show` draws them.

python benchmarks/pictures.py           # writes docs/figures/four-gpus.svg and eight-gpus.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

from collc.cli import main as collc

ROOT = Path(__file__).parents[1]
PICTURES = {"four-gpus": ["dgx1v", "--gpus", "0,1,4,6"], "eight-gpus": ["dgx1v"]}


def draw(folder: Path, name: str) -> Path:
    """One picture."""
    path = folder / f"{name}.svg"
    try:
        collc(["show", *PICTURES[name], "--collective", "all_reduce", "--svg", str(path)])
    except SystemExit as ended:
        if ended.code:
            raise
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures", help="The folder to write to.")
    folder = parser.parse_args().figures
    for name in PICTURES:
        draw(folder, name)


if __name__ == "__main__":
    main()
