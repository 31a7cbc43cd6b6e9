#!/usr/bin/env python3
"""Writes the compact tables for check.py: `make gpu-check-tables`.

NAME.tables.xz has the values that `templates/tables.cpp.j2` prints, as JSON, without the comments of rows. Writing it
needs collc, but no nvcc, because the device code is built where it is checked. The manifest names no compiler, so one
version of collc writes the same tables everywhere.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import lzma
import sys
from pathlib import Path
from typing import NamedTuple

from collc.build.compile import source_context
from collc.build.toolchain import Compiler
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.codegen.context import SourceContext
from collc.collectives.model import COMPILED, Collective
from collc.options import CUDA

HERE = Path(__file__).resolve().parent


class Wanted(NamedTuple):
    """The request of a library.

    Args:
        slots: slots of every FIFO; None: collc's default.
    """

    topology: str
    allocations: str | None
    collectives: tuple[Collective, ...]
    slots: int | None = None


_COMPILER = Compiler("c++", "any compiler", "")
_SHAPE = (Collective.BROADCAST, Collective.REDUCE, Collective.ALL_REDUCE)
# Roots other than 0, and collectives that are not checked, would make the files several times as large; only one file
# has them all.
LIBRARIES: dict[str, Wanted | None] = {
    "hgx-h100": None,  # what `collc compile hgx-h100` makes
    "hgx-h100-sets": Wanted("hgx-h100", "0-1/0-3/0-7", COMPILED),
    "dgx1v": Wanted("dgx1v", None, COMPILED),
    "chain": Wanted(str(HERE / "chain.yaml"), "0-1/0-3/0-7", _SHAPE),
    "fan": Wanted(str(HERE / "fan.yaml"), "0-1/0-3/0-7", _SHAPE),
    "chains": Wanted(str(HERE / "chains.yaml"), "0-2/0-4/0-6", _SHAPE[:2]),
    "2-slots": Wanted("hgx-h100", None, (Collective.ALL_REDUCE,), 2),
    "8-slots": Wanted("hgx-h100", None, (Collective.ALL_REDUCE,), 8),
}


def context(name: str) -> SourceContext:
    """Returns the values of the generated source of one library."""
    wanted = LIBRARIES[name]
    if wanted is None:
        return source_context(library_contents(LibraryRequest(name), CUDA), CUDA, _COMPILER)[0]
    roots = (0,) if any(collective.rooted for collective in wanted.collectives) else None
    request = LibraryRequest(
        wanted.topology, allocations=wanted.allocations, collectives=wanted.collectives, roots=roots
    )
    target = dataclasses.replace(CUDA, slots=wanted.slots) if wanted.slots else CUDA
    return source_context(library_contents(request, target), target, _COMPILER)[0]


def compact(found: SourceContext) -> bytes:
    """Returns the contents of the file for a context."""
    values = dataclasses.asdict(found)
    for table in values["tables"]:
        table["rows"] = [row["cells"] for row in table["rows"]]
    return lzma.compress(json.dumps(values, separators=(",", ":")).encode("ascii"), preset=9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(LIBRARIES)}; default: all")
    parser.add_argument("--folder", type=Path, default=HERE, help="where to; default: beside this file")
    options = parser.parse_args()
    for name in options.names or LIBRARIES:
        path = options.folder / f"{name}.tables.xz"
        path.write_bytes(compact(context(name)))
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
