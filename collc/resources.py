"""Finds templates and topologies: in the installed package first, else in the checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from collc.errors import CollcError

_PACKAGE = Path(__file__).resolve().parent


@cache
def resource_dir(name: str) -> Path:
    """Returns the path of the folder `templates` or `topologies`.

    Raises:
        CollcError: the installation lacks the folder.
    """
    for place in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if place.is_dir():
            return place
    raise CollcError(f"the folder {name} of collc is missing", where=str(_PACKAGE), hint="install collc again")
