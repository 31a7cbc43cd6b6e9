"""`collc inspect`: what is inside a library."""

from __future__ import annotations

from pathlib import Path

import click

from collc.build.cuda import needs
from collc.build.readback import read_manifest
from collc.cli.report import compact, debug_option, emit_json, json_option, table


@click.command("inspect")
@click.argument("library", type=click.Path(path_type=Path))
@json_option
@debug_option
def command(library: Path, as_json: bool) -> None:
    """Print the manifest of LIBRARY without running it."""
    manifest = read_manifest(library)
    if as_json:
        emit_json(manifest)
        return
    click.echo(f"{library}: {manifest['name']}, target {manifest['target']}, collc {manifest['collc']}")
    click.echo(f"build {manifest['build_id']}, {manifest['compiler']}")
    if manifest.get("device_code"):
        made = dict.fromkeys(row["compiler"] for row in manifest["device_code"])
        click.echo(f"device code by {' and '.join(made)}: {needs(manifest['device_code'])}")
    for allocation in manifest["allocations"]:
        click.echo(
            f"\n{allocation['nranks']} GPUs ({', '.join(allocation['gpus'])}), graph {allocation['fingerprint']}"
        )
        blocks = max((program["channels"] for program in allocation["programs"]), default=0)
        click.echo(
            f"{allocation['slots']} slots of {allocation['slot_bytes']} bytes per FIFO, "
            f"{allocation['fifo_bytes'] / 1e6:.1f} MB of FIFOs per communicator, at most {blocks} channels per rank"
        )
        rows = [
            [
                program["collective"],
                "-" if program["root"] is None else str(program["root"]),
                "-" if program["rate_gbps"] is None else compact(program["rate_gbps"]),
                "yes" if program["optimal"] else "no",
                str(program["trees"]),
                str(program["depth"]),
                str(program["channels"]),
                str(program["fifos"]),
            ]
            for program in allocation["programs"]
        ]
        click.echo(table(["collective", "root", "GB/s", "optimal", "trees", "depth", "channels", "FIFOs"], rows))
