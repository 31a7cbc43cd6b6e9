#!/usr/bin/env python3
"""Writes the generated sources that check.py starts from again: `make gpu-check-sources`.

Needs collc, but no nvcc: the sources hold tables alone, and the device code is built where they are checked. The
compiler is not written into the manifest, so the same version of collc writes the same bytes everywhere.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from collc.build.compile import Contents, generate
from collc.build.toolchain import Compiler
from collc.choose import hold, way_for
from collc.compiler import CompileRequest, find_graphs, make_document
from collc.options import CUDA
from collc.packing.model import Collective
from collc.pipeline import COMPILED, Recorder

HERE = Path(__file__).resolve().parent
# Name -> topology, allocations, collectives. Other roots than 0, and collectives that are not looked at, would make the
# files several times as large.
SOURCES: dict[str, tuple[str, str | None, tuple[Collective, ...]]] = {
    "hgx-h100": ("hgx-h100", "0-1/0-3/0-7", COMPILED),
    "dgx1v": ("dgx1v", None, COMPILED),
    "chain": (str(HERE / "chain.yaml"), "0-1/0-3/0-7", (Collective.BROADCAST,)),
}


def rendered(name: str) -> str:
    """The generated source of one library."""
    topology, allocations, collectives = SOURCES[name]
    request = CompileRequest(topology=topology, allocations=allocations, collectives=collectives, roots=(0,))
    graphs, sets = find_graphs(request, lambda text: None)
    recorder = Recorder()
    documents, entries = [], []
    for graph in graphs:
        document = make_document(graph, request, recorder, lambda text: None)
        way = way_for(CUDA, graph, len(graphs))
        held = hold(graph, document.plans, CUDA, way, recorder=recorder)
        documents.append(replace(document, plans=held.plans))
        entries.append(held.entries)
    source, _ = generate(Contents(tuple(documents), tuple(entries), sets), CUDA, Compiler("c++", "any compiler", ""))
    return source


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SOURCES)}; default: all")
    parser.add_argument("--folder", type=Path, default=HERE, help="where to; default: beside this file")
    options = parser.parse_args()
    for name in options.names or SOURCES:
        text = rendered(name)
        (options.folder / f"{name}.cpp").write_text(text, encoding="ascii")
        print(f"{options.folder / name}.cpp: {len(text) / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
