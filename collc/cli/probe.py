"""`collc probe`: the links of this machine, or of a dump, as a topology file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from collc.cli import report
from collc.errors import CollcError
from collc.topology.dump import dumps_topology
from collc.topology.model import Topology
from collc.topology.probe.dumps import topology_from_dumps

# A dump is a few kilobytes; this bounds what a wrong file name can cost.
_MOST_BYTES = 16 << 20


@click.command()
@click.option("--from", "sources", multiple=True, metavar="FILE", help="Read a dump; - is standard input. May repeat.")
@click.option("--gpu-model", metavar="M", help="Such as V100: tells what a dump cannot say.")
@click.option("--name", metavar="NAME", help="Name of the topology.")
@click.option("-o", "--output", metavar="FILE", help="Write here instead of standard output.")
@report.json_option
@report.debug_option
def command(
    sources: tuple[str, ...], gpu_model: str | None, name: str | None, output: str | None, as_json: bool
) -> None:
    """Read the links of this machine, or of a dump, and write a topology file.

    A dump is recognised by its content: nvidia-smi topo -m, nvidia-smi nvlink -s and -R, NCCL topology XML, rocm-smi
    --showtopo. Whatever had to be assumed is a comment in the file and a line on standard error.
    """
    topology = topology_from_dumps([_load(source) for source in sources], gpu_model=gpu_model, name=name)
    _write(topology, output, as_json)


def _load(source: str) -> tuple[str, str]:
    if source == "-":
        return "<stdin>", sys.stdin.buffer.read(_MOST_BYTES).decode("utf-8", "replace")
    with Path(source).open("rb") as file:
        return source, file.read(_MOST_BYTES).decode("utf-8", "replace")


def _write(topology: Topology, output: str | None, as_json: bool) -> None:
    text = dumps_topology(topology)
    for note in topology.notes:
        report.note(f"collc probe: {note}")
    if output is not None and output != "-":
        try:
            Path(output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise CollcError(f"cannot write: {error.strerror}", where=output) from None
    if as_json:
        report.emit_json(_as_json(topology, output))
    elif output in (None, "-"):
        click.echo(text, nl=False)


def _as_json(topology: Topology, output: str | None) -> dict[str, object]:
    return {
        "name": topology.name,
        "output": output,
        "vertices": [{"name": v.name, "kind": v.kind.value} for v in topology.vertices],
        "links": [{"src": k.src, "dst": k.dst, "kind": k.kind.value, "gbps": str(k.gbps)} for k in topology.links],
        "assumptions": list(topology.notes),
    }
