"""Which library of a folder is for this machine: by the fingerprint of its GPUs' graph, never by a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from collc.checker.library import read_manifest
from collc.errors import CollcError, RunError, UsageError
from collc.limits import limited
from collc.topology.canonical import fingerprint
from collc.topology.graph import plan_graph
from collc.topology.model import Topology


def pick_library(folder: Path, machines: Callable[[], Sequence[Topology]]) -> tuple[Path, Topology]:
    """The one library in a folder that has plans for this machine, and the machine as it was found.

    A library for the whole machine goes before one that has its plan for what a loss leaves of another machine.

    Args:
        machines: asked what this machine is, once there is something to choose from: all its GPUs, then the GPUs
            that this process sees, if these are fewer. The first that some library serves decides.

    Raises:
        UsageError: the folder holds no library.
        RunError: none, or more than one, serves the machine; or a file there is no library of collc.
    """
    libraries = sorted(folder.glob("libcollc-*.so"))
    if not libraries:
        raise UsageError("no libcollc-*.so in it", where=str(folder), hint="`collc compile TOPO -o FOLDER` fills it")
    served = {path: _fingerprints(path) for path in libraries}
    known = machines()
    for machine in known:
        own = machine_print(machine)
        found = [path for path, prints in served.items() if own in prints]
        if len(found) > 1:
            found = [path for path in found if _whole(path) == own] or found
        if len(found) > 1:
            names = ", ".join(path.name for path in found[:4])
            raise RunError(f"{len(found)} libraries fit this machine: {names}", where=str(folder), hint="keep one")
        if found:
            return found[0], machine
    machine = known[-1]
    raise RunError(
        f"none of its {len(libraries)} libraries has a plan for the {len(machine.gpus)} GPUs of {machine.name}",
        where=str(folder),
        hint="compile the topology of this machine too; has it lost a link or a GPU? `collc probe` shows what it is, "
        "and libraries of `collc compile --survive 1` have plans for that",
    )


def _fingerprints(path: Path) -> set[str]:
    with limited(path):
        manifest = read_manifest(path)
    return {str(allocation["fingerprint"]) for allocation in manifest["allocations"]}


def _whole(path: Path) -> str | None:
    """The fingerprint of all GPUs of the library's machine before any loss."""
    with limited(path):
        manifest = read_manifest(path)
    whole = [one for one in manifest["allocations"] if one["nranks"] == len(manifest["gpus"])]
    return str(whole[0]["fingerprint"]) if whole else None


def machine_print(machine: Topology) -> str | None:
    """The fingerprint of all GPUs of a machine; None where they are not joined, for which no library has a plan."""
    try:
        return fingerprint(plan_graph(machine))
    except CollcError:
        return None  # its GPUs are not joined, so no library is for all of them
