#!/usr/bin/env python3
"""Writes the compact tables that check.py starts from: `make gpu-check-tables`.

NAME.tables.xz is what `templates/tables.cpp.j2` prints, as JSON, without the comments of rows. It takes collc, but no
nvcc: the device code is built where it is checked. The compiler is not written into the manifest, so the same version
of collc writes the same tables everywhere.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import lzma
import sys
from pathlib import Path

from collc.build.compile import source_context
from collc.build.toolchain import Compiler
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.codegen.context import SourceContext
from collc.collectives.model import COMPILED, Collective
from collc.options import CUDA

HERE = Path(__file__).resolve().parent
# Name -> topology, allocations, collectives. Other roots than 0, and collectives that are not looked at, would make the
# files several times as large.
LIBRARIES: dict[str, tuple[str, str | None, tuple[Collective, ...]]] = {
    "hgx-h100": ("hgx-h100", "0-1/0-3/0-7", COMPILED),
    "dgx1v": ("dgx1v", None, COMPILED),
    "chain": (str(HERE / "chain.yaml"), "0-1/0-3/0-7", (Collective.BROADCAST,)),
}


def context(name: str) -> SourceContext:
    """What the generated source of one library prints."""
    topology, allocations, collectives = LIBRARIES[name]
    request = LibraryRequest(topology, allocations=allocations, collectives=collectives, roots=(0,))
    return source_context(library_contents(request, CUDA), CUDA, Compiler("c++", "any compiler", ""))[0]


def compact(found: SourceContext) -> bytes:
    """The file of a context."""
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
