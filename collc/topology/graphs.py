"""Imports igraph without matplotlib, because collc draws no graph with it.

igraph imports matplotlib if it is installed. This takes longer than many commands, and matplotlib reads a
`matplotlibrc` of the current folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without_drawing() -> Iterator[None]:
    must_hide = "matplotlib" not in sys.modules
    if must_hide:
        sys.modules["matplotlib"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if must_hide:
            del sys.modules["matplotlib"]


with _without_drawing():
    import igraph

__all__ = ["igraph"]
