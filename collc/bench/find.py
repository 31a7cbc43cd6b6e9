"""Which library a command means when none is named."""

from __future__ import annotations

from pathlib import Path

from collc.errors import UsageError


def find_library(named: Path | None) -> Path:
    """The named library, or the one libcollc-*.so of the current folder.

    Raises:
        UsageError: if the file does not exist, or there is none or more than one to choose from.
    """
    if named is not None:
        if not named.is_file():
            raise UsageError("no such library", where=str(named), hint="build one with `collc compile TOPO`")
        return named
    found = sorted(Path().glob("libcollc-*.so"))
    if not found:
        raise UsageError("no libcollc-*.so here", hint="build one with `collc compile TOPO`, or name it")
    if len(found) > 1:
        raise UsageError(f"{len(found)} libraries here: {', '.join(map(str, found))}", hint="name one")
    return found[0]
