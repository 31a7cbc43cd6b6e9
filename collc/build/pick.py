"""Picks the library of a folder for this machine by the fingerprint of its GPUs' graph, never by a name."""

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
    """Returns the only library in a folder with a plan for this machine, and the machine that it serves.

    A library that was compiled for the machine without losses has precedence over a library whose plan is for the rest
    of another machine after a loss.

    Args:
        machines: called if the folder contains a library. Returns the machine with all GPUs, then, if this process sees
            fewer GPUs, the machine with these. The first one that some library serves decides.

    Raises:
        UsageError: the folder contains no library.
        RunError: no library or more than one serves the machine, or a file in the folder is no library of collc.
    """
    libraries = sorted(folder.glob("libcollc-*.so"))
    if not libraries:
        raise UsageError("no libcollc-*.so in it", where=str(folder), hint="`collc compile TOPO -o FOLDER` fills it")
    library_prints = {path: _fingerprints(path) for path in libraries}
    choices = machines()
    for machine in choices:
        live_print = machine_print(machine)
        matches = [path for path, prints in library_prints.items() if live_print in prints]
        if len(matches) > 1:
            matches = [path for path in matches if _machine_print_of(path) == live_print] or matches
        if len(matches) > 1:
            names = ", ".join(path.name for path in matches[:4])
            raise RunError(f"{len(matches)} libraries fit this machine: {names}", where=str(folder), hint="keep one")
        if matches:
            return matches[0], machine
    machine = choices[-1]
    raise RunError(
        f"none of its {len(libraries)} libraries has a plan for the {len(machine.gpus)} GPUs of {machine.name}",
        where=str(folder),
        hint="compile the topology of this machine too; has it lost a link or a GPU? `collc probe` shows what it is, "
        "and libraries of `collc compile --survive 1` have plans for that",
    )


def _fingerprints(path: Path) -> set[str]:
    """Returns the fingerprints of all allocations of a library."""
    with limited(path):
        manifest = read_manifest(path)
    return {str(allocation["fingerprint"]) for allocation in manifest["allocations"]}


def _machine_print_of(path: Path) -> str | None:
    """Returns the fingerprint of the library's machine with all GPUs; None if that is no allocation of the library."""
    with limited(path):
        manifest = read_manifest(path)
    allocations = [row for row in manifest["allocations"] if row["nranks"] == len(manifest["gpus"])]
    return str(allocations[0]["fingerprint"]) if allocations else None


def machine_print(machine: Topology) -> str | None:
    """Returns the fingerprint of all GPUs of a machine; None if they are not joined, so that no library serves them."""
    try:
        return fingerprint(plan_graph(machine))
    except CollcError:
        return None
