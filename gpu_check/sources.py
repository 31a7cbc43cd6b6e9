"""Renders the sources of the libraries from the compact tables in this folder and collc's template.

Jinja is not needed: collc's template only prints values and loops over rows, and `render` can do both. A test compares
its text with Jinja's.
"""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any

from gpu import CheckError

HERE = Path(__file__).resolve().parent
TEMPLATE = HERE.parent / "templates" / "tables.cpp.j2"
SUFFIX = ".tables.xz"

# A block tag removes its line, as with Jinja's trim_blocks and lstrip_blocks.
_TAG = re.compile(r"(^[ \t]*\{%.*?%\}\n|\{\{.*?\}\})", re.M)
_LOOP = re.compile(r"\s*\{% for ([\w, ]+) in ([\w.]+) %\}\n")
_END = re.compile(r"\s*\{% endfor %\}\n")
_VALUE = re.compile(r"\{\{ ([\w.]+) \}\}")


def source(name: str) -> str:
    """Returns the text of NAME.cpp."""
    return render(TEMPLATE.read_text(encoding="utf-8"), values_of(HERE / (name + SUFFIX)))


def values_of(path: Path) -> dict[str, Any]:
    """Returns the values for the template. Rows of tables have empty comments here."""
    try:
        values: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise CheckError(f"{path.name} cannot be read ({error}); `make gpu-check-tables` writes it") from error
    for table in values["tables"]:
        table["rows"] = [{"cells": cells, "comment": ""} for cells in table["rows"]]
    return values


def render(template: str, values: dict[str, Any]) -> str:
    """Renders a template that contains only `{{ name.field }}` and `{% for a, b in rows %}` ... `{% endfor %}`."""
    pieces = _TAG.split(template)
    pieces.reverse()
    tree = _parse(pieces)
    if pieces:
        raise CheckError("the template ends a loop that it did not begin")
    return "".join(_print(tree, values))


def _parse(pieces: list[str]) -> list[Any]:
    """Parses up to the end of the loop: texts, paths of values as lists, loops as (names, path, body)."""
    tree: list[Any] = []
    while pieces:
        piece = pieces.pop()
        loop, value = _LOOP.fullmatch(piece), _VALUE.fullmatch(piece)
        if loop:
            names = [name.strip() for name in loop[1].split(",")]
            inside = _parse(pieces)
            tree.append((names, loop[2].split("."), inside))
        elif value:
            tree.append(value[1].split("."))
        elif _END.fullmatch(piece):
            return tree
        elif piece.lstrip().startswith(("{%", "{{")):
            raise CheckError(f"the template has a tag that is not known here: {piece.strip()}")
        else:
            tree.append(piece)
    return tree


def _print(tree: list[Any], values: dict[str, Any]) -> Any:
    for node in tree:
        if isinstance(node, str):
            yield node
        elif isinstance(node, list):
            yield str(_value(node, values))
        else:
            names, path, inside = node
            for item in _value(path, values):
                fields = [item] if len(names) == 1 else item
                yield from _print(inside, {**values, **dict(zip(names, fields))})  # noqa: B905


def _value(path: list[str], values: dict[str, Any]) -> Any:
    found: Any = values
    for name in path:
        if name not in found:
            raise CheckError(f"the template asks for {'.'.join(path)}, which the tables do not have")
        found = found[name]
    return found
