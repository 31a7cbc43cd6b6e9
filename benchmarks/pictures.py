"""The drawings of README.md and docs/optimal.md.

python benchmarks/pictures.py           # writes docs/figures/*.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import collc
from collc.cli import main as run_collc
from collc.collectives import Collective
from collc.packing.candidates.ring_rates import ring_rate
from collc.show import style
from collc.simulator.plot import figure, save
from collc.topology.model import LinkKind

ROOT = Path(__file__).parents[1]
PLANS = {"four-gpus": ["dgx1v", "--gpus", "0,1,4,6"], "eight-gpus": ["dgx1v"]}
COMPARISON = "ring-or-trees"
PICTURES = (*PLANS, COMPARISON)

GPUS = (0, 1, 4, 6)
# (x, y) of the four GPUs, and of the PCIe switches and CPUs that join them.
CORNERS = {1: (0.0, 1.0), 0: (0.0, 0.0), 4: (1.7, 0.0), 6: (1.7, 1.0)}
HOST = (0.85, 0.5)
NVLINKS = ((0, 1), (0, 4), (4, 6))
IDLE, HALF, FULL = style.USE[0][1], style.USE[2][1], style.USE[-1][1]


def draw(folder: Path, name: str) -> Path:
    """Writes the picture `name` of `PICTURES` into `folder` and returns its path."""
    path = folder / f"{name}.svg"
    if name == COMPARISON:
        draw_comparison(path)
        return path
    try:
        run_collc(["show", *PLANS[name], "--collective", "all_reduce", "--svg", str(path)])
    except SystemExit as ended:
        if ended.code:
            raise
    return path


def draw_comparison(path: Path) -> None:
    """Draws which links carry an all_reduce on four GPUs of a DGX-1V: a ring over PCIe, and trees over NVLink."""
    rate = collc.plan("dgx1v", gpus=list(GPUS)).rate
    assert rate is not None
    # No ring of NVLinks joins these GPUs, so NCCL's ring runs at the speed of their PCIe links.
    pcie = min(link.gbps for link in collc.load("dgx1v").links if link.kind is LinkKind.PCIE)
    ring = ring_rate(Collective.ALL_REDUCE, len(GPUS), 1, pcie)
    drawn = figure()(figsize=(7.2, 2.7), layout="constrained")
    ring_axes, tree_axes = drawn.subplots(1, 2)
    _draw_panel(ring_axes, f"NCCL: a ring over PCIe, {style.number(ring, 2)} GB/s", uses_nvlink=False)
    _draw_panel(tree_axes, f"collc: trees over NVLink, {style.number(rate)} GB/s", uses_nvlink=True)
    save(drawn, path)


def _draw_panel(axes: Any, title: str, *, uses_nvlink: bool) -> None:
    for gpu in GPUS:
        _draw_link(axes, CORNERS[gpu], HOST, IDLE if uses_nvlink else FULL, dashes=True)
    for a, b in NVLINKS:
        # The plan fills the links at both ends and half of the double link between them.
        color, width = (HALF, 4.5) if (a, b) == (0, 4) else (FULL, 3)
        _draw_link(axes, CORNERS[a], CORNERS[b], color if uses_nvlink else IDLE, width)
    _draw_box(axes, HOST, "PCIe and CPUs", style.BOXES["cpu"], 0.28)
    for gpu in GPUS:
        _draw_box(axes, CORNERS[gpu], f"gpu{gpu}", style.BOXES["gpu"], 0.17)
    axes.set_xlim(-0.25, 1.95)
    axes.set_ylim(-0.18, 1.18)
    axes.axis("off")
    axes.set_title(title, fontsize=9.5, weight="bold", color=style.INK)


def _draw_link(
    axes: Any, a: tuple[float, float], b: tuple[float, float], color: str, width: float = 2, dashes: bool = False
) -> None:
    axes.plot((a[0], b[0]), (a[1], b[1]), color=color, lw=width, ls=(0, (4, 2)) if dashes else "-", zorder=1)


def _draw_box(axes: Any, place: tuple[float, float], text: str, color: str, half_width: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = (place[0] - half_width, place[1] - 0.1)
    shape = "round,pad=0,rounding_size=0.03"
    axes.add_patch(
        FancyBboxPatch(corner, 2 * half_width, 0.2, boxstyle=shape, fc=color, ec=style.BORDER, lw=0.7, zorder=2)
    )
    axes.text(*place, text, fontsize=8, color=style.INK, ha="center", va="center", zorder=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures", help="The folder to write to.")
    folder = parser.parse_args().figures
    for name in PICTURES:
        draw(folder, name)


if __name__ == "__main__":
    main()
