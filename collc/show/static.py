"""Draws one view as a static figure: the machine, a plan, a tree, results, or times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from collc.errors import CollcError, UsageError
from collc.packing.document import PlanFile
from collc.packing.explain import binding, link_loads
from collc.packing.model import Plan
from collc.show import style
from collc.show.curves import Curve, Plot, Point, draw_plots
from collc.show.drawing import Drawing
from collc.show.figure import draw_scene, load_paints, machine_paints
from collc.show.page import View
from collc.show.plans import plan_note
from collc.show.scene import scene
from collc.simulator.plot import figure, save

_STEP_COLORS = {"send": "#6baed6", "recv": "#74c69d", "reduce": "#9d7fd1", "copy": "#b9c1ca"}
_CRITICAL = "#d55e00"


def draw_machine(path: Path, drawing: Drawing) -> None:
    """Draws the machine, with links by kind and speed."""
    draw_scene(path, drawing, scene(drawing), machine_paints(drawing), drawing.name)


def draw_plan(path: Path, drawing: Drawing, document: PlanFile, tree: int | None = None) -> None:
    """Draws the first plan of a document on its machine, with the load of every link.

    Args:
        tree: the index of a tree whose loads are drawn; None for all trees.

    Raises:
        UsageError: the plan has no such tree.
    """
    made = document.plans[0]
    graph = document.graph
    place = {
        (drawing.vertices[a].name, drawing.vertices[b].name, kind): i for i, (a, b, kind, _) in enumerate(drawing.links)
    }
    names = [v.name for v in graph.vertices]
    own = [place[names[x.src], names[x.dst], x.kind] for x in graph.links]
    if made.rate is None:
        draw_machine(path, drawing)
        return
    loads = link_loads(graph, made) if tree is None else _loads_of_tree(len(graph.links), made, tree)
    limits = frozenset(own[i] for i in binding(graph, made).gain)
    paints = load_paints(drawing, {own[i]: load for i, load in enumerate(loads)}, limits)
    words = plan_note(graph, made)["words"]
    what = made.collective.value if tree is None else f"tree {tree + 1} of {made.collective.value}"
    title = f"{what} on {drawing.name}: {style.both(made.rate)} GB/s"
    draw_scene(path, drawing, scene(drawing), paints, title, caption=_caption(words))


def _caption(words: Sequence[str]) -> str:
    reason = next((line for line in words if line.startswith("What limits it: ")), "")
    return reason.removeprefix("What limits it: ")


def _loads_of_tree(links: int, made: Plan, number: int) -> list[Fraction]:
    trees = [*made.trees, *(orbit.tree for orbit in (made.orbits.orbits if made.orbits else ()))]
    if not 0 <= number < len(trees):
        raise UsageError(f"there is no tree {number + 1}", where="--tree", hint=f"the plan has trees 1 to {len(trees)}")
    loads = [Fraction(0)] * links
    for hop in (*trees[number].reduce, *trees[number].broadcast):
        for link in hop.links:
            loads[link] += trees[number].weight
    return loads


def draw_results(path: Path, view: View, title: str) -> None:
    """Draws ratios of times if there are several series, else bus bandwidths: up to six plots, one per collective.

    Raises:
        CollcError: there are no rows to plot.
    """
    plots = []
    for held in view.data["plots"][:6]:
        series = held["series"]
        if len(series) > 1:
            curves = [replace(_curve(each, 4, 5), color=i) for i, each in enumerate(series[1:], 1)]
            plots.append(Plot(held["title"], f"time over that of {series[0]['name']}", tuple(curves), one=True))
        else:
            plots.append(Plot(held["title"], "bus bandwidth, GB/s", (_curve(series[0], 3, None),)))
    if not plots:
        raise CollcError("there are no rows to plot", where=title, hint="give results of bench or simulate")
    draw_plots(path, plots, title)


def _curve(series: dict[str, Any], column: int, low: int | None) -> Curve:
    points = [
        Point(row[0], row[column], None if low is None else row[low], None if low is None else row[low + 1])
        for row in series["points"]
        if row[column] is not None
    ]
    return Curve(series["name"], tuple(points))


def draw_times(path: Path, view: View, title: str) -> None:
    """Draws steps over time, in a row per rank and channel. The critical path is orange."""
    columns, names = view.data["columns"], view.data["names"]
    lanes = sorted(set(zip(columns["rank"], columns["channel"], strict=True)))
    row = {lane: i for i, lane in enumerate(lanes)}
    drawn = figure()(figsize=(11, max(2.5, min(14.0, 1.2 + 0.11 * len(lanes)))), layout="constrained")
    axes = drawn.subplots()
    spans: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for i, begin in enumerate(columns["begin"]):
        color = _CRITICAL if columns["critical"][i] else _STEP_COLORS[_sort(names[columns["name"][i]])]
        lane = row[columns["rank"][i], columns["channel"][i]]
        spans.setdefault((lane, color), []).append((begin, columns["end"][i] - begin))
    for (lane, color), held in sorted(spans.items()):
        axes.broken_barh(held, (lane + 0.08, 0.84), facecolors=color, lw=0)
    ranks = sorted({rank for rank, _ in lanes})
    axes.set_yticks(
        [sum(row[lane] + 0.5 for lane in lanes if lane[0] == r) / sum(lane[0] == r for lane in lanes) for r in ranks],
        [f"rank {r}" for r in ranks],
        fontsize=8,
    )
    axes.set_ylim(len(lanes), 0)
    axes.set_xlabel("microseconds", fontsize=9)
    axes.set_title(title.replace("$", r"\$"), fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    from matplotlib.patches import Patch

    keys = [*((name, color) for name, color in _STEP_COLORS.items()), ("critical path", _CRITICAL)]
    drawn.legend(
        handles=[Patch(color=c, label=n) for n, c in keys], loc="outside lower left", ncols=5, fontsize=8, frameon=False
    )
    save(drawn, path)


def _sort(name: str) -> str:
    low = name.lower()
    return "reduce" if "reduce" in low else "recv" if "recv" in low else "send" if "send" in low else "copy"
