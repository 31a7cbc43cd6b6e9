"""igraph, imported without matplotlib: no graph is drawn here.

igraph imports matplotlib where there is one, which takes longer than many commands, and which reads a `matplotlibrc` of
the current folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without_drawing() -> Iterator[None]:
    hidden = "matplotlib" not in sys.modules
    if hidden:
        sys.modules["matplotlib"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules["matplotlib"]


with _without_drawing():
    import igraph

__all__ = ["igraph"]
