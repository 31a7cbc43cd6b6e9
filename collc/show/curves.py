"""Draws static plots of results over message sizes, with few named curves and error ranges as bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collc.show import style
from collc.simulator.plot import figure, save

# A plot with more curves is not readable, so the others are left out.
MOST_CURVES = 6
# The highest ratio of a plot. Higher values are drawn at the edge.
MOST_RATIO = 8.0


@dataclass(frozen=True)
class Point:
    """A value at a size in bytes, and the ends of its error range if they are known."""

    size: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Curve:
    """A named series of points. `color` is the index of its color; None for its index in the plot."""

    name: str
    points: tuple[Point, ...]
    color: int | None = None


@dataclass(frozen=True)
class Plot:
    """One pair of axes.

    Attributes:
        one: the values are ratios: a line is drawn at 1, and the axis has the common range of all such plots.
        band: a shaded range of ratios.
        named: curves have their names at their ends.
    """

    title: str
    ylabel: str
    curves: tuple[Curve, ...]
    one: bool = False
    band: tuple[float, float] | None = None
    named: bool = True


def draw_plots(path: Path, plots: Sequence[Plot], title: str = "") -> None:
    """Writes plots in two columns into one figure (.svg, .png, .pdf). Equal plots give equal bytes.

    Raises:
        BuildError: matplotlib is missing, or the format is none of the three.
    """
    across = min(2, len(plots))
    down = math.ceil(len(plots) / across)
    drawn = figure()(figsize=(6.4 * across, 3.9 * down), layout="constrained")
    if title:
        drawn.suptitle(_plain(title), fontsize=11, weight="bold")
    spans = _range([plot for plot in plots if plot.one])
    grid = drawn.subplots(down, across, squeeze=False)
    for i in range(down * across):
        axes = grid[i // across][i % across]
        if i < len(plots):
            _draw(axes, plots[i], spans)
        else:
            axes.axis("off")
    save(drawn, path)


def _plain(text: str) -> str:
    return text.replace("$", r"\$")


def _range(plots: Sequence[Plot]) -> tuple[float, float]:
    """Returns one range for all ratios of a figure, so that its plots can be compared."""
    points = [p for plot in plots for curve in plot.curves[:MOST_CURVES] for p in curve.points]
    values = [v for p in points for v in (p.value, p.low, p.high) if v is not None]
    bands = [end for plot in plots if plot.band for end in plot.band]
    return min([0.9, *values, *bands]) * 0.96, min(MOST_RATIO, max([1.1, *values, *bands])) * 1.04


def _draw(axes: Any, plot: Plot, ratios: tuple[float, float]) -> None:
    curves = [c for c in plot.curves if c.points][:MOST_CURVES]
    axes.set_title(_plain(plot.title), fontsize=10, loc="left")
    axes.set_ylabel(_plain(plot.ylabel), fontsize=9)
    axes.set_xscale("log", base=2)
    sizes = sorted({max(1, p.size) for c in curves for p in c.points})
    if not sizes:
        return
    values = [p.value for c in curves for p in c.points]
    bottom, top = ratios if plot.one else (0.0, max(values) * 1.08)
    axes.set_ylim(bottom, top)
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    if plot.band is not None:
        axes.axhspan(*plot.band, color="#eceff2", zorder=0)
    if plot.one:
        axes.axhline(1.0, color=style.INK, lw=1, dashes=(4, 3), zorder=1)
    labels = []
    for i, curve in enumerate(curves):
        color = style.SERIES[(i if curve.color is None else curve.color) % len(style.SERIES)]
        xs, ys = [max(1, p.size) for p in curve.points], [min(p.value, top) for p in curve.points]
        known = [(p.size, p.low, p.high) for p in curve.points if p.low is not None and p.high is not None]
        if known:
            axes.fill_between(
                [k[0] for k in known], [k[1] for k in known], [k[2] for k in known], color=color, alpha=0.15, lw=0
            )
        axes.plot(xs, ys, color=color, lw=2, marker="o", ms=4, zorder=3)
        labels.append((ys[-1], curve.name, color))
    if plot.named:
        _name(axes, labels, bottom, top)
    _ticks(axes, sizes)
    axes.grid(axis="y", color="#d5dae0", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _name(axes: Any, labels: list[tuple[float, str, str]], bottom: float, top: float) -> None:
    """Writes the curves' names at their right ends, and moves names apart that would overlap."""
    gap = (top - bottom) * 0.062
    placed: list[float] = []
    for y, _, _ in sorted(labels):
        placed.append(max(y, placed[-1] + gap) if placed else y)
    over = placed[-1] - (top - gap / 2) if placed else 0.0
    if over > 0:
        ceiling = top - gap / 2
        for i in reversed(range(len(placed))):
            placed[i] = min(placed[i], ceiling)
            ceiling = placed[i] - gap
    for y, (_, name, color) in zip(placed, sorted(labels), strict=True):
        at = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "xytext": (6, 0)}
        text = name if len(name) <= 22 else name[:21] + "…"
        axes.annotate(_plain(text), (1.0, y), **at, color=color, fontsize=9, va="center", annotation_clip=False)


def _ticks(axes: Any, sizes: Sequence[int]) -> None:
    """Labels a few powers of two with sizes and units."""
    powers = range(math.ceil(math.log2(sizes[0])), math.floor(math.log2(sizes[-1])) + 1)
    every = max(1, math.ceil(len(powers) / 7))
    ticks = list(sizes) if len(sizes) <= 6 else [2**p for p in powers][::every] or [sizes[0]]
    axes.set_xticks(ticks, [style.size_name(t) for t in ticks], fontsize=8)
    axes.minorticks_off()
    axes.tick_params(axis="y", labelsize=8)
