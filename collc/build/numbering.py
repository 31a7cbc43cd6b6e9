"""The numbering of a live machine against the one that a library was compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collc.build.cache import CacheProblem, content_key, safe_folder
from collc.checker.library import Library
from collc.errors import RunError
from collc.outputs import written_aside
from collc.topology.canonical import fingerprint, match
from collc.topology.dump import dumps_links
from collc.topology.graph import plan_graph
from collc.topology.model import Topology

# What the runtime looks for: a file of the links that it finds.
FOUND = "COLLC_TOPOLOGY"


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


def links_file(machine: Topology) -> Path:
    """A file of the machine's links as the runtime reads them, for the variable `FOUND`; it stays for later processes.

    Raises:
        RunError: no folder of this user can be written.
    """
    text = dumps_links(machine)
    try:
        path = safe_folder("found") / f"{content_key([text])[:32]}.links"
        if not path.exists():
            with written_aside(path, 0o644) as aside:
                aside.write_text(text, encoding="utf-8")
    except (CacheProblem, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RunError(
            f"cannot write what this machine has: {reason}", hint="set COLLC_CACHE to a folder of yours"
        ) from error
    return path
