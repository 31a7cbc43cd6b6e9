"""Draws static figures of a scene by matplotlib, for papers and for the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from collc.show import style
from collc.show.drawing import Drawing
from collc.show.scene import Line, Scene, Shape
from collc.simulator.plot import figure, save

POINTS_PER_INCH = 72.0
CAPTION_POINTS = 8.0  # the font size of a caption
CAPTION_LINE_INCHES = 0.15  # the height of one line of a caption: 1.35 times its font size
_LANE = 2.6  # half the distance between the two directions of a link


def machine_paints(drawing: Drawing) -> dict[int, style.Paint]:
    """Returns the paint of each link by its kind and speed."""
    most = max((gbps for _, _, _, gbps in drawing.links), default=Fraction(1))
    return {
        i: style.Paint(style.KINDS[kind.value], 0.5 * style.width_of(gbps, most), style.DASHES.get(kind.value, ()))
        for i, (_, _, kind, gbps) in enumerate(drawing.links)
    }


def load_paints(drawing: Drawing, loads: Mapping[int, Fraction], limits: frozenset[int]) -> dict[int, style.Paint]:
    """Returns the paint of each link of a plan by its use.

    Args:
        loads: the load of each link in GB/s.
        limits: the links that the certificate marks as limits.
    """
    most = max((gbps for _, _, _, gbps in drawing.links), default=Fraction(1))
    found = {}
    for i, (_, _, kind, gbps) in enumerate(drawing.links):
        share = float(loads.get(i, Fraction(0)) / gbps)
        step = style.use_step(share)
        dash = style.DASHES.get(kind.value, ())
        width = 0.5 * style.width_of(gbps, most)
        found[i] = style.Paint(style.USE[step][1], width, dash, limit=i in limits, above=step > 0)
    return found


def draw_scene(
    path: Path, drawing: Drawing, scene: Scene, paints: Mapping[int, style.Paint], title: str, caption: str = ""
) -> None:
    """Writes a figure (.svg, .png, .pdf). Equal input gives equal bytes.

    Raises:
        BuildError: matplotlib is missing, or the format is none of the three.
    """
    made = figure()
    scale = min(1.0, 1900 / scene.width)
    width = max(4.6, scene.width * scale / 100)
    lines = wrap(caption, (width - 0.2) * POINTS_PER_INCH, CAPTION_POINTS) if caption else []
    below = 0.38 + (0.2 + CAPTION_LINE_INCHES * len(lines) if lines else 0.0)
    inches = (width, max(2.0, scene.height * scale / 100) + 0.45 + below)
    drawn = made(figsize=inches)
    axes = drawn.add_axes((0.0, below / inches[1], 1.0, 1 - (0.45 + below) / inches[1]))
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    axes.set_aspect("equal")
    axes.axis("off")
    font = 7.2 * min(1.0, 100 / 100 * scale * 1.25)
    _frames(axes, scene, font)
    pairs = {(a, b, k) for a, b, k, _ in drawing.links}
    for line in sorted(scene.lines, key=lambda n: max(paints[i].above for i in n.links)):
        _line(axes, drawing, line, paints, pairs)
    for shape in scene.shapes:
        _shape(axes, drawing, shape, font)
    drawn.text(0.012, 1 - 0.27 / inches[1], _plain(title), fontsize=10, weight="bold", color=style.INK, va="center")
    if lines:
        place = {"x": 0.012, "y": 0.46 / inches[1], "va": "bottom"}
        drawn.text(s=_plain("\n".join(lines)), fontsize=CAPTION_POINTS, color=style.INK, **place)
    _legend(drawn, drawing, paints)
    save(drawn, path)


def wrap(text: str, width: float, font_size: float) -> list[str]:
    """Returns `text` in lines of at most `width` points, measured in the default font at `font_size` points."""
    from matplotlib.textpath import TextPath

    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and TextPath((0, 0), _plain(longer), size=font_size).get_extents().width <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _plain(text: str) -> str:
    """Returns the text with escaped dollar signs, which matplotlib would read as mathematics."""
    return text.replace("$", r"\$")


def _frames(axes: Any, scene: Scene, font: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    for f in scene.frames:
        axes.add_patch(
            FancyBboxPatch(
                (f.x, f.y),
                f.w,
                f.h,
                boxstyle="round,pad=0,rounding_size=8",
                fc=style.PANEL,
                ec=style.BORDER,
                lw=0.7,
                zorder=1,
            )
        )
        name = _short(f.server, f.w - 12)
        axes.text(f.x + 8, f.y + 13, _plain(name), fontsize=font, color=style.MUTED, va="center", zorder=6)


def _line(axes: Any, drawing: Drawing, line: Line, paints: Mapping[int, style.Paint], pairs: set[Any]) -> None:
    paint = max((paints[i] for i in line.links), key=lambda p: (p.limit, p.above, p.width))
    a, b, kind, _ = drawing.links[line.links[0]]
    shift = _LANE if (b, a, kind) in pairs else 0.0
    dx, dy = line.x2 - line.x1, line.y2 - line.y1
    long = (dx * dx + dy * dy) ** 0.5 or 1.0
    ox, oy = -dy / long * shift, dx / long * shift
    ends = (line.x1 + ox, line.y1 + oy, line.x2 + ox, line.y2 + oy)
    xs, ys = _curve(ends, line.bend)
    style_of = {"solid_capstyle": "butt", "dash_capstyle": "butt"}
    if paint.limit:
        axes.plot(xs, ys, color=style.LIMIT, lw=paint.width + 3.2, zorder=2, alpha=0.65, **style_of)
    dashes = {"dashes": [d * 0.8 for d in paint.dash]} if paint.dash else {}
    axes.plot(xs, ys, color=paint.color, lw=paint.width, zorder=4 if paint.above else 3, **style_of, **dashes)


def _curve(ends: tuple[float, float, float, float], bend: float) -> tuple[list[float], list[float]]:
    x1, y1, x2, y2 = ends
    if not bend:
        return [x1, x2], [y1, y2]
    long = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 or 1.0
    cx = (x1 + x2) / 2 - (y2 - y1) / long * bend * 2
    cy = (y1 + y2) / 2 + (x2 - x1) / long * bend * 2
    ts = [i / 20 for i in range(21)]
    return (
        [(1 - t) ** 2 * x1 + 2 * (1 - t) * t * cx + t * t * x2 for t in ts],
        [(1 - t) ** 2 * y1 + 2 * (1 - t) * t * cy + t * t * y2 for t in ts],
    )


def _shape(axes: Any, drawing: Drawing, shape: Shape, font: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    kind = drawing.vertices[shape.vertices[0]].kind.value
    idle = kind == "gpu" and not set(shape.vertices) <= set(drawing.ranks)
    rounded = 0.0 if shape.role in ("trunk", "pip") else 4.0
    axes.add_patch(
        FancyBboxPatch(
            (shape.x - shape.w / 2, shape.y - shape.h / 2),
            shape.w,
            shape.h,
            boxstyle=f"round,pad=0,rounding_size={rounded}",
            fc=style.PAPER if idle else style.BOXES[kind],
            ec=style.BORDER,
            ls=(0, (3, 2)) if idle else "-",
            lw=0.7,
            zorder=5,
        )
    )
    if shape.text:
        color = style.MUTED if idle else style.INK
        text = _plain(_short(shape.text, shape.w - 4))
        axes.text(shape.x, shape.y, text, fontsize=font, color=color, ha="center", va="center", zorder=6)


def _short(text: str, width: float) -> str:
    """Returns the text cut to a width, at about 7 units per letter."""
    most = max(3, int(width / 7.0))
    return text if len(text) <= most else text[: most - 1] + "…"


def _legend(drawn: Any, drawing: Drawing, paints: Mapping[int, style.Paint]) -> None:
    from matplotlib.lines import Line2D

    if any(p.above or p.limit for p in paints.values()):
        steps = zip((color for _, color in style.USE), style.USE_NAMES, strict=True)
        rows = [Line2D([], [], color=color, lw=3, label=name) for color, name in steps]
        if any(p.limit for p in paints.values()):
            rows.append(Line2D([], [], color=style.LIMIT, lw=6, alpha=0.65, label="limits the rate"))
    else:
        speeds: dict[str, set[Fraction]] = {}
        for _, _, kind, gbps in drawing.links:
            speeds.setdefault(kind.value, set()).add(gbps)
        rows = []
        for name, found in speeds.items():
            shown = ", ".join(style.number(g) for g in sorted(found)[:4])
            line = Line2D([], [], color=style.KINDS[name], lw=2, label=f"{name} {shown} GB/s")
            if name in style.DASHES:
                line.set_dashes([d * 0.7 for d in style.DASHES[name]])
            rows.append(line)
    columns = max(1, min(len(rows), int(drawn.get_size_inches()[0] / 1.45)))
    drawn.legend(handles=rows, loc="lower left", ncols=columns, fontsize=7, frameon=False, handlelength=2.4)
