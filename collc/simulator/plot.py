"""Figures; they need matplotlib: `pip install collc[plot]`."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import Any

from collc.errors import BuildError
from collc.process import temporary_folder

_FORMATS = (".svg", ".png", ".pdf")


def figure() -> Any:
    """matplotlib's Figure class, without a display.

    Raises:
        BuildError: matplotlib is missing.
    """
    try:
        # matplotlib reads a `matplotlibrc` of the current folder before the user's own.
        with temporary_folder() as empty, chdir(empty):
            from matplotlib.figure import Figure
    except ImportError as error:
        raise BuildError("plots need matplotlib", hint="pip install 'collc[plot]'") from error
    return Figure


def check_plot(path: Path) -> None:
    """Says before any work whether a figure can be drawn into a file of this name.

    Raises:
        BuildError: matplotlib is missing, or has no such format.
    """
    if path.suffix not in _FORMATS:
        raise BuildError(f"no figure format {path.suffix!r}", where=str(path), hint=f"use {', '.join(_FORMATS)}")
    figure()


def save(drawn: Any, path: Path) -> None:
    """Writes a figure; the same figure gives the same bytes. Text in an SVG stays text, in the fonts of the reader."""
    check_plot(path)
    import matplotlib

    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    with matplotlib.rc_context({"svg.hashsalt": "collc", "svg.fonttype": "none"}):
        drawn.savefig(path, metadata=dates)
