"""Plots of the pages: lines, pairs of bars and boxes, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collc.show import style
from collc.simulator.plot import figure, save


def _axes(width: float, height: float, title: str, ylabel: str, xlabel: str = "") -> tuple[Any, Any]:
    drawn = figure()(figsize=(width, height), layout="constrained")
    axes = drawn.subplots()
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylabel(ylabel, fontsize=9)
    axes.set_xlabel(xlabel, fontsize=9)
    axes.grid(axis="y", color="#d5dae0", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return drawn, axes


def lines(
    path: Path,
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    *,
    logx: bool = False,
    logy: bool = False,
    ticks: Mapping[float, str] | None = None,
) -> None:
    """Named curves of (x, y); `ticks` names places on the x axis."""
    drawn, axes = _axes(7.2, 4.0, title, ylabel, xlabel)
    for i, (name, points) in enumerate(series.items()):
        color = style.SERIES[i % len(style.SERIES)]
        dashes = "--" if name.endswith("(source)") else "-"
        axes.plot(
            [p[0] for p in points], [p[1] for p in points], dashes, color=color, lw=1.8, marker="o", ms=4, label=name
        )
    if logx:
        axes.set_xscale("log", base=2)
    if logy:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if ticks is not None:
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()
    axes.legend(fontsize=8, frameon=False)
    save(drawn, path)


def bars(path: Path, title: str, names: Sequence[str], series: Mapping[str, Sequence[float]], ylabel: str) -> None:
    """Groups of bars, a group for each name."""
    drawn, axes = _axes(max(7.2, 0.24 * len(names) + 2), 4.2, title, ylabel)
    width = 0.8 / len(series)
    for i, (label, values) in enumerate(series.items()):
        places = [x + (i - (len(series) - 1) / 2) * width for x in range(len(names))]
        axes.bar(places, values, width, color=style.SERIES[i % len(style.SERIES)], label=label)
    many = len(names) > 8
    axes.set_xticks(range(len(names)), names, rotation=90 if many else 0, fontsize=7 if many else 8)
    axes.set_xlim(-0.7, len(names) - 0.3)
    axes.legend(fontsize=8, frameon=False)
    save(drawn, path)


def boxes(path: Path, title: str, groups: Mapping[str, Sequence[float]], ylabel: str) -> None:
    """Boxes with whiskers at the 5th and 95th percentile, and a line at 1."""
    drawn, axes = _axes(7.2, 4.0, title, ylabel)
    axes.boxplot(list(groups.values()), whis=(5, 95), widths=0.5, medianprops={"color": style.SERIES[0], "lw": 2})
    axes.set_xticks(range(1, len(groups) + 1), list(groups), fontsize=8)
    axes.axhline(1.0, color=style.INK, lw=1, dashes=(4, 3))
    axes.set_ylim(bottom=0)
    save(drawn, path)


def ranges(
    path: Path, title: str, names: Sequence[str], spans: Mapping[str, Sequence[tuple[float, float]]], ylabel: str
) -> None:
    """Draws a bar from the lowest to the highest value of each name, for each series."""
    drawn, axes = _axes(max(7.2, 0.3 * len(names) + 2), 4.2, title, ylabel)
    width = 0.8 / len(spans)
    for i, (label, values) in enumerate(spans.items()):
        places = [x + (i - (len(spans) - 1) / 2) * width for x in range(len(names))]
        heights = [max(high - low, 0.004) for low, high in values]
        axes.bar(places, heights, width * 0.9, bottom=[low for low, _ in values], color=style.SERIES[i], label=label)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    save(drawn, path)
