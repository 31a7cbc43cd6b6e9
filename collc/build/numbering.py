"""Maps the GPU numbers of a live machine to the GPU numbers of the topology that a library was compiled for."""

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

# The variable that names the file from which the runtime reads the machine's links.
FOUND = "COLLC_TOPOLOGY"


def live_numbering(contents: Library, library: Path, machine: Topology, links: str | None = None) -> list[int]:
    """Returns, for each GPU of the live machine in order, the number of the matching GPU of the library's topology.

    With this list one library serves machines whose dumps number the GPUs differently.

    Args:
        contents: the contents of the library.
        library: the path of the library, for errors.
        machine: the live machine. All its GPUs must be an allocation of the library.
        links: the kinds of links in the graph, as `plan_graph` takes them.

    Raises:
        RunError: the library has no plan for the whole live machine.
    """
    graph = plan_graph(machine, None, links)
    live_fingerprint = fingerprint(graph)
    for document in contents.documents:
        if document.fingerprint != live_fingerprint:
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
    """Writes the links of a machine to a file for the variable `FOUND`, and returns its path.

    The file has the format that the runtime reads. It stays in the cache for later processes.

    Raises:
        RunError: the file cannot be written in the cache of this user.
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
