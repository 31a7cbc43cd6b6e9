"""The library that a process group runs: a given one, or one for the ranks of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from collc import __version__
from collc.build.cache import cached, content_key
from collc.build.runtime import headers, runtime_units
from collc.build.toolchain import find_cxx
from collc.compiler import CompileRequest, compile_topology
from collc.options import TargetKind

# Ranks share one memory: all pairs are alike, and what a rank may read and write per second is its share. The figures
# only matter against each other.
_SHARED_MEMORY = """format: collc-topology/1
name: shared-memory-{ranks}
gpus: {ranks}
switches: [memory]
links:
{links}
"""


def library_for(ranks: int) -> Path:
    """The library of a world of `ranks` ranks: it serves every group of 2 to `ranks` of them.

    COLLC_LIBRARY names another one; ncclCommInitRank says so if that serves no such group.

    Raises:
        BuildError: without a compiler.
    """
    chosen = os.environ.get("COLLC_LIBRARY")
    if chosen:
        return Path(chosen)
    links = "\n".join(f"  - {{between: [gpu{r}, memory], kind: nvswitch, gbps: 10}}" for r in range(ranks))
    text = _SHARED_MEMORY.format(ranks=ranks, links=links)
    units = runtime_units(TargetKind.HOST, find_cxx())
    sources = [path.read_bytes() for path in (*(unit.source for unit in units), *headers())]
    name = f"libcollc-shared-memory-{ranks}.so"

    def make(made: Path) -> None:
        # All ranks may do this at once: the library is renamed into place, whichever rank is first.
        topology = made.with_name("shared-memory.yaml")
        topology.write_text(text, encoding="utf-8")
        wanted = f"2..{ranks}"
        compile_topology(
            CompileRequest(topology=str(topology), output=made, target=TargetKind.HOST, allocations=wanted)
        )

    return cached(content_key(["torch", __version__, find_cxx().version, text, *sources]), name, make)
