"""`collc inspect`: what is inside a library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from collc.build.cuda import needs
from collc.checker.library import read_manifest
from collc.cli import report
from collc.cli.report import compact, debug_option, emit_json, json_option, table
from collc.collectives.sizes import short_size
from collc.inputs import open_input
from collc.limits import limited


@click.command("inspect")
@click.argument("library", type=click.Path(path_type=Path))
@json_option
@debug_option
def command(library: Path, as_json: bool) -> None:
    """Print the manifest of LIBRARY without running it."""
    open_input(library).close()
    with limited(library):
        manifest = read_manifest(library)
    if as_json:
        emit_json(manifest)
        return
    report.line(f"{library}: {manifest['name']}, target {manifest['target']}, collc {manifest['collc']}")
    report.line(f"build {manifest['build_id']}, {manifest['compiler']}")
    if manifest.get("device_code"):
        made = dict.fromkeys(row["compiler"] for row in manifest["device_code"])
        report.line(f"device code by {' and '.join(made)}: {needs(manifest['device_code'])}")
        counts = "by channel (bench --breakdown)" if manifest.get("counters") else "not built in"
        report.line(f"counters of waiting, copying and reducing: {counts}")
    for allocation in manifest["allocations"]:
        report.line("")
        report.line(f"{allocation['nranks']} GPUs ({', '.join(allocation['gpus'])}), graph {allocation['fingerprint']}")
        blocks = max((program["channels"] for program in allocation["programs"]), default=0)
        report.line(
            f"{allocation['slots']} slots of {allocation['slot_bytes']} bytes per FIFO, "
            f"{allocation['fifo_bytes'] / 1e6:.1f} MB of FIFOs per communicator, at most {blocks} channels per rank"
        )
        held = [program for program in allocation["programs"] if program["min_bytes"] is not None]
        rows = [
            [
                program["collective"],
                "-" if program["root"] is None else str(program["root"]),
                str(program["min_bytes"]),
                program["plan"],
                program["proto"],
                short_size(program["chunk_bytes"]),
                "-" if program["rate_gbps"] is None else compact(program["rate_gbps"]),
                "yes" if program["optimal"] else "no",
                str(program["trees"]),
                str(program["depth"]),
                str(program["channels"]),
                str(program["fifos"]),
            ]
            for program in held
        ]
        header = ["collective", "root", "from bytes", "plan", "protocol", "chunk", "GB/s", "optimal"]
        report.text(table([*header, "trees", "depth", "channels", "FIFOs"], rows))
        for reason in _reasons(held):
            report.line(reason)
        if len(held) < len(allocation["programs"]):
            report.line(f"{len(allocation['programs']) - len(held)} more programs for `collc tune` to choose from")


def _reasons(programs: list[dict[str, Any]]) -> list[str]:
    """Why each program begins where it does: once per collective, for its first root."""
    first: dict[str, Any] = {}
    lines = []
    for program in programs:
        root = first.setdefault(program["collective"], program["root"])
        if program["root"] == root and program["why"]:
            lines.append(f"{program['collective']} from {program['min_bytes']} bytes: {program['why']}")
    return lines
