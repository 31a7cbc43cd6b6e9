"""`collc run -- CMD`: runs a command with a library in place of NCCL."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import click

from collc.bench.find import find_library, find_wheel_nccl, whose
from collc.build.clients import (
    NCCL,
    PATH_VARIABLES,
    client_settings,
    has_xgboost,
    hides_other_packages,
    named_nccl,
)
from collc.build.numbering import FOUND, links_file, live_numbering
from collc.build.pick import machine_print, pick_library
from collc.build.preload import check_preload, find_by_loader, is_of_nccl_folder, preload_name
from collc.checker.library import read_library, read_manifest
from collc.checker.machine import ALL_BUT
from collc.choose.servers import only_server
from collc.cli import report
from collc.cli.report import debug_option
from collc.cli.sections import SectionedCommand
from collc.errors import CollcError, RunError, UsageError
from collc.limits import limited
from collc.network.ucx import wheel_setting
from collc.topology.load import load_topology
from collc.topology.model import Topology
from collc.topology.probe.live import probe_machine


@click.command("run", cls=SectionedCommand, context_settings={"ignore_unknown_options": True})
@click.option(
    "--lib",
    "library",
    type=click.Path(path_type=Path),
    help="The library [the one libcollc-*.so here], or a folder of them: the one for this machine's GPUs is taken.",
)
@click.option(
    "--topology",
    metavar="TOPO",
    help="This machine's topology, if its GPUs are numbered differently from those of the library's topology, or if it "
    "has lost something (compile --survive 1). Of several servers, the one with this host's name.",
)
@debug_option
@click.argument("argv", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(library: Path | None, topology: str | None, argv: tuple[str, ...]) -> None:
    """Run CMD with the library preloaded, so that its calls of NCCL reach collc.

    The library's code runs in CMD and in what it starts: name only a library that you trust as you trust CMD.
    """
    # click passes unknown options on, because they may be options of CMD.
    if argv[0].startswith("-"):
        raise UsageError(f"no such option {argv[0]!r}", where="run", hint="see `collc run --help`")
    if argv[0].endswith(".so"):
        raise UsageError("is a library, not a command", where=argv[0], hint=f"write `--lib {argv[0]} -- CMD`")
    machine = None if topology is None else _this_server(load_topology(topology))
    now: Topology | None
    if library is not None and library.is_dir():
        path, now = pick_library(library, _live if machine is None else lambda: [machine])
        if others := whose(path):
            raise UsageError(f"{others}, and running it is not safe", where=str(path), hint="name it itself to run it")
        report.note(f"collc run: {path}")
    else:
        path, now = find_library(library), machine
    with limited(path):
        manifest = read_manifest(path)
    if now is None and manifest.get("states") and not os.environ.get(FOUND):
        now = _what_is_left(path, manifest)
    program = shutil.which(argv[0])
    if program is None:
        there = os.path.dirname(argv[0]) and os.path.exists(argv[0])
        reason = "Permission denied" if there else "No such file or directory"
        raise RunError(f"cannot run it: {reason}", where=argv[0], hint="name a program after --")
    preload, before = preload_name(path), os.environ.get("LD_PRELOAD")
    environment = {**os.environ, "LD_PRELOAD": f"{preload}:{before}" if before else preload}
    environment.update(wheel_setting(os.environ))
    environment |= _nccl_settings(preload, program)
    if now is not None and manifest.get("states"):
        environment[FOUND] = str(links_file(now))
    elif machine is not None:
        with limited(path):
            numbering = live_numbering(read_library(path), path, machine)
        environment["COLLC_NUMBERING"] = ",".join(map(str, numbering))
    check_preload(Path(program), preload, environment)
    try:
        os.execve(program, list(argv), environment)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise RunError(f"cannot run it: {reason}", where=argv[0], hint="name a program after --") from error


def _nccl_settings(preload: str, program: str) -> dict[str, str]:
    """Returns variables that lead clients of NCCL to the library, and the library to the NCCL that they would load."""
    wheel = find_wheel_nccl(program, os.environ)
    settings = client_settings(preload, wheel, os.environ)
    if wheel is not None and has_xgboost(wheel) and hides_other_packages(wheel):
        what = f"XGBoost opens {wheel} by its path, not the library"
        report.note(
            f"collc run: {what}; pass dmlc_nccl_path={settings[PATH_VARIABLES[0]]!r} to it, or update this wheel"
        )
    if not os.environ.get("COLLC_NCCL"):
        nccl = named_nccl(os.environ) or wheel or find_by_loader(NCCL, Path(program), os.environ)
        if nccl is not None and not is_of_nccl_folder(str(nccl)):
            settings["COLLC_NCCL"] = str(nccl)
    return settings


def _this_server(topology: Topology) -> Topology:
    """Returns the topology; if it has several servers, the topology of the server with this host's name.

    Raises:
        UsageError: no server has this host's name.
    """
    if len(topology.servers) == 1:
        return topology
    host = socket.gethostname()
    for name in (host, host.partition(".")[0]):
        if name in topology.servers:
            return only_server(topology, name)
    raise UsageError(
        f"none of its {len(topology.servers)} servers is called {host[:60]}, as this host is",
        where="--topology",
        hint="give the topology of this machine alone, such as `collc probe` writes",
    )


def _what_is_left(path: Path, manifest: dict[str, Any]) -> Topology | None:
    """Returns this machine's topology, for a library with plans for several kinds of servers or for losses.

    Returns None without a driver, as on machines that only test a library, and if a library for losses has no plan for
    this machine.
    """
    several = any(what.startswith(ALL_BUT) for what in manifest["states"])
    try:
        machines = _live()
    except CollcError as error:
        if several:
            report.note(f"collc run: {error.what}; set COLLC_TOPOLOGY to the machine's topology")
        return None
    # A task of a job may see fewer GPUs than remain after a loss. They do not show what the machine has lost.
    least = 0 if several else len(manifest["gpus"]) - 1
    known = {str(a["fingerprint"]) for a in manifest["allocations"] if a["nranks"] >= least}
    found = [machine for machine in machines if machine_print(machine) in known]
    if found:
        return found[0]
    kept = "" if several else "; the library assumes that the machine is complete"
    what = f"{path} has no plan for the {len(machines[-1].gpus)} GPUs of {machines[-1].name} as they are linked now"
    report.note(f"collc run: {what}{kept}")
    return machines[0] if several else None


def _live() -> list[Topology]:
    """Returns this machine, and if CUDA_VISIBLE_DEVICES is set, also the machine with only these GPUs.

    Raises:
        CollcError: the machine cannot be probed.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        whole = probe_machine(name=socket.gethostname()[:60]).topology
        return [whole] if visible is None else [whole, probe_machine(visible=visible).topology]
    except CollcError as error:
        hint = "name one library of the folder, or this machine's --topology"
        raise RunError(
            f"cannot tell which library is for this machine: {error.what}", where="--lib", hint=hint
        ) from None
