"""`collc topologies`: the machines that come with collc."""

from __future__ import annotations

import click

from collc.cli import report
from collc.topology import zoo
from collc.topology.load import load_topology
from collc.topology.model import Topology, VertexKind


@click.command()
@report.json_option
@report.debug_option
def command(as_json: bool) -> None:
    """List the machines that come with collc. Their names work wherever a topology file does."""
    machines = [(name, load_topology(name)) for name in zoo.names()]
    if as_json:
        report.emit_json([_row(name, topology) for name, topology in machines])
        return
    rows = [
        [name, str(len(topology.gpus)), str(len(topology.servers)), _links(topology), zoo.title(name)]
        for name, topology in machines
    ]
    report.text(report.table(["name", "gpus", "servers", "links", "what"], _left(rows), left=5))


def _left(rows: list[list[str]]) -> list[list[str]]:
    return [[*row[:4], row[4] if len(row[4]) <= 62 else row[4][:59] + "..."] for row in rows]


def _links(topology: Topology) -> str:
    return ", ".join(dict.fromkeys(link.kind.value for link in topology.links))


def _row(name: str, topology: Topology) -> dict[str, object]:
    return {
        "name": name,
        "gpus": len(topology.gpus),
        "servers": len(topology.servers),
        "switches": sum(v.kind is VertexKind.SWITCH for v in topology.vertices),
        "nics": sum(v.kind is VertexKind.NIC for v in topology.vertices),
        "links": sorted({link.kind.value for link in topology.links}),
        "source": zoo.source(name),
    }
