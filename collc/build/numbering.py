"""The numbering of a live machine against the one that a library was compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collc.checker.library import Library
from collc.errors import RunError
from collc.topology.canonical import fingerprint, match
from collc.topology.graph import plan_graph
from collc.topology.model import Topology


def live_numbering(contents: Library, library: Path, machine: Topology, links: str | None = None) -> list[int]:
    """For each GPU of the live machine, by its own number, the GPU of the library's topology that it stands for.

    Public dumps of one machine type number its GPUs in several ways; libraries for it are the same up to this list.

    Args:
        machine: the live machine; all its GPUs must be an allocation of the library.

    Raises:
        RunError: if the library holds no plan for the whole live machine.
    """
    graph = plan_graph(machine, None, links)
    wanted = fingerprint(graph)
    for document in contents.documents:
        if document.fingerprint != wanted:
            continue
        mapping = match(graph, document.graph)
        assert mapping is not None, "two different graphs share a fingerprint"
        names: Sequence[str] = contents.manifest["gpus"]
        return [names.index(document.graph.vertices[mapping[rank]].name) for rank in graph.ranks]
    raise RunError(
        f"it has no plan for all {graph.nranks} GPUs of {machine.name}",
        where=str(library),
        hint="compile it for this type of machine and include the whole machine in its allocations",
    )
