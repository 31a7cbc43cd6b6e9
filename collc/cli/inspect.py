"""`collc inspect`: prints what is inside a library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from collc.build.cuda import needs
from collc.build.memory import most_pinned_bytes
from collc.checker.library import read_library, read_manifest
from collc.cli import report
from collc.cli.losses import library_losses, losses_json, losses_text, losses_title
from collc.cli.report import compact, debug_option, emit_json, json_option, table
from collc.cli.sections import SectionedCommand
from collc.collectives.sizes import short_size
from collc.errors import RunError, first_few
from collc.inputs import open_input
from collc.limits import limited
from collc.options import TargetKind

_MOST_PAIRS = 12  # longer lists of pairs are cut


@click.command("inspect", cls=SectionedCommand)
@click.argument("library", type=click.Path(path_type=Path))
@click.option("--routes", is_flag=True, help="List every FIFO too, with the links to each of its readers.")
@json_option
@debug_option
def command(library: Path, routes: bool, as_json: bool) -> None:
    """Print the manifest of LIBRARY without running it."""
    open_input(library).close()
    with limited(library):
        manifest = read_manifest(library)
        fifos = _fifos(library) if routes else [[]] * len(manifest["allocations"])
        losses = library_losses(read_library(library)) if manifest.get("states") else []
    if as_json:
        for allocation, own in zip(manifest["allocations"], fifos, strict=True) if routes else ():
            allocation["fifos"] = own
        if losses:
            manifest["losses"] = losses_json(losses)
        emit_json(manifest)
        return
    report.line(f"{library}: {manifest['name']}, target {manifest['target']}, collc {manifest['collc']}")
    report.line(f"build {manifest['build_id']}, {manifest['compiler']}")
    if manifest.get("device_code"):
        made = dict.fromkeys(row["compiler"] for row in manifest["device_code"])
        report.line(f"device code by {' and '.join(made)}: {needs(manifest['device_code'])}")
        counts = "by channel (bench --breakdown)" if manifest.get("counters") else "not built in"
        report.line(f"counters of waiting, copying and reducing: {counts}")
        if manifest.get("direct"):
            report.line("other GPUs read buffers of ncclMemAlloc directly")
        if manifest.get("specialised"):
            report.line(f"kernels with written-out steps: {', '.join(manifest['specialised'])}")
    if losses:
        report.line(losses_title(losses))
        report.text(losses_text(losses))
    for allocation, own in zip(manifest["allocations"], fifos, strict=True):
        report.line("")
        report.line(f"{allocation['nranks']} GPUs ({_by_server(allocation)}), graph {allocation['fingerprint']}")
        blocks = max((program["channels"] for program in allocation["programs"]), default=0)
        where = " on each server" if len(set(allocation["servers"])) > 1 else ""
        memory = f"{allocation['fifo_bytes'] / 1e6:.1f} MB of FIFOs per communicator{where}"
        if manifest["target"] == TargetKind.CUDA.value:
            memory = f"FIFOs and transfers at most {allocation['gpu_bytes'] / 1e6:.1f} MB of each GPU per communicator"
        report.line(
            f"{allocation['slots']} slots of {allocation['slot_bytes']} bytes per FIFO, {memory}, "
            f"at most {blocks} channels per rank"
        )
        if manifest["target"] == TargetKind.CUDA.value and allocation["nranks"] > 1:
            report.line(_pinned(allocation))
        if allocation["server_bytes"]:
            taken = f"{allocation['server_bytes'] / 1e6:.1f} MB of a server's memory per communicator"
            several = len(set(allocation["servers"])) > 1
            how = "between servers: a courier" if several else "over network cards inside the server: couriers"
            report.line(f"{how} and pinned host memory, at most {taken}")
        held = [program for program in allocation["programs"] if program["min_bytes"] is not None]
        rows = [
            [
                program["collective"],
                "-" if program["root"] is None else str(program["root"]),
                str(program["min_bytes"]),
                program["plan"] + ("+everywhere" if program["everywhere"] else ""),
                program["proto"],
                short_size(program["chunk_bytes"]),
                "-" if program["rate_gbps"] is None else compact(program["rate_gbps"]),
                "yes" if program["optimal"] else "no",
                str(program["trees"]),
                str(program["depth"]),
                str(program["channels"]),
                str(program["fifos"]),
                _classes(program["links"]),
            ]
            for program in held
        ]
        header = ["collective", "root", "from bytes", "plan", "protocol", "chunk", "GB/s", "optimal"]
        report.text(table([*header, "trees", "depth", "channels", "FIFOs", "links"], rows))
        for reason in _reasons(held):
            report.line(reason)
        if len(held) < len(allocation["programs"]):
            report.line(f"{len(allocation['programs']) - len(held)} more programs for `collc tune` to choose from")
        for number, fifo in enumerate(own):
            ways = "; ".join(" - ".join(way) for way in fifo["routes"])
            readers = ", ".join(map(str, fifo["readers"]))
            report.line(f"FIFO {number} from rank {fifo['source']} to {readers} over {fifo['link']}: {ways}")


def _by_server(allocation: Mapping[str, Any]) -> str:
    """Returns the GPUs, such as ``gpu0, gpu1``; if there are several servers, by server."""
    groups: dict[str, list[str]] = {}
    for gpu, server in zip(allocation["gpus"], allocation["servers"], strict=True):
        groups.setdefault(server, []).append(gpu)
    if len(groups) == 1:
        return ", ".join(allocation["gpus"])
    return "; ".join(f"{server}: {', '.join(gpus)}" for server, gpus in groups.items())


def _pinned(allocation: Mapping[str, Any]) -> str:
    """Returns which pairs of ranks use pinned host memory, and how much of it a communicator takes."""
    nranks, pairs = allocation["nranks"], allocation["host_pairs"]
    most = most_pinned_bytes(allocation["gpu_bytes"], nranks)
    if not pairs and allocation["host_bytes"]:
        taken = f"{allocation['host_bytes'] / 1e6:.1f} MB in all"
        more = f"if no GPUs reach each other at most {most / 1e6:.1f} MB more"
        return f"PCIe beside NVLink: pinned host memory, {taken}; {more}"
    if not pairs:
        return f"between GPUs that do not reach each other: pinned host memory, at most {most / 1e6:.1f} MB in all"
    every = len(pairs) == nranks * (nranks - 1) // 2
    which = "all pairs of ranks" if every else f"ranks {first_few(pairs, _MOST_PAIRS)}"
    taken = f"{allocation['host_bytes'] / 1e6:.1f} MB in all"
    more = "" if every else f"; if no GPUs reach each other at most {most / 1e6:.1f} MB"
    return f"between {which}: pinned host memory, as the topology stages their data in a CPU's memory, {taken}{more}"


def _classes(links: Mapping[str, int]) -> str:
    """Returns the link classes of a program's FIFOs; with the number of each if there are several."""
    return ", ".join(links) if len(links) < 2 else ", ".join(f"{count} {kind}" for kind, count in links.items())


def _fifos(library: Path) -> list[list[dict[str, Any]]]:
    """Returns the FIFOs of each allocation by number, from the library's tables; routes are names of vertices.

    Raises:
        RunError: a FIFO names links that its plan does not have.
    """
    found = []
    whole = read_library(library)
    for document, held in zip(whole.documents, whole.tables.allocations, strict=True):
        graph = document.graph
        rows: list[dict[str, Any]] = []
        for fifo in held.fifos:
            if any(not 0 <= link < len(graph.links) for route in fifo.routes for link in route):
                raise RunError(f"FIFO {len(rows)} names links that its plan does not have", where=str(library))
            names = [
                [graph.vertices[v].name for v in (fifo.src, *(graph.links[link].dst for link in route))]
                for route in fifo.routes
            ]
            kind = fifo.link.value if fifo.link else None
            rows.append({"source": fifo.src, "readers": list(fifo.dsts), "link": kind, "routes": names})
        found.append(rows)
    return found


def _reasons(programs: list[dict[str, Any]]) -> list[str]:
    """Returns why each program begins at its size; of a rooted collective only for the first root."""
    first: dict[str, Any] = {}
    lines = []
    for program in programs:
        root = first.setdefault(program["collective"], program["root"])
        if program["root"] == root and program["why"]:
            lines.append(f"{program['collective']} from {program['min_bytes']} bytes: {program['why']}")
    return lines
