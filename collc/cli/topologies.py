"""`collc topologies`: lists the machines that come with collc."""

from __future__ import annotations

import re
from fractions import Fraction

import click

from collc.cli import report
from collc.cli.sections import SectionedCommand
from collc.errors import UsageError
from collc.topology import zoo
from collc.topology.load import load_topology
from collc.topology.make import KINDS, make
from collc.topology.model import Topology, VertexKind

_HEADER = ["name", "gpus", "servers", "links", "what"]


@click.command(cls=SectionedCommand)
@click.argument("parameters", metavar="[KEY=NUMBER]...", nargs=-1)
@click.option(
    "--make",
    "kind",
    metavar="KIND",
    help=f"Print the file of a topology of this kind instead: {', '.join(KINDS)}. KEY=NUMBER pairs follow.",
)
@report.json_option
@report.debug_option
def command(parameters: tuple[str, ...], kind: str | None, as_json: bool) -> None:
    """List the machines that come with collc. Their names work wherever a topology file does."""
    if kind is not None:
        if as_json:
            raise UsageError("--make prints a topology file, not --json", hint="leave --json out")
        report.text(make(kind, _values(parameters)), nl=False)
        return
    if parameters:
        raise UsageError(f"{parameters[0][:40]!r} belongs to --make KIND", hint=f"kinds are {', '.join(KINDS)}")
    machines = [(name, load_topology(name)) for name in zoo.names()]
    if as_json:
        report.emit_json([_row(name, topology) for name, topology in machines])
        return
    rows = [
        [name, str(len(topology.gpus)), str(len(topology.servers)), _links(topology), zoo.title(name)]
        for name, topology in machines
    ]
    report.text(report.table(_HEADER, _fitting(rows), left=5))


def _values(parameters: tuple[str, ...]) -> dict[str, int | Fraction]:
    values: dict[str, int | Fraction] = {}
    for text in parameters:
        key, _, number = text.partition("=")
        if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", number, re.ASCII):
            raise UsageError(f"{text[:40]!r} is no KEY=NUMBER", where="--make", hint="such as servers=64")
        if key in values:
            raise UsageError(f"{key[:40]!r} is given twice", where="--make")
        values[key] = Fraction(number)
    return values


def _fitting(rows: list[list[str]]) -> list[list[str]]:
    """Returns the rows with the last column cut to the width of the terminal; in a pipe nothing is cut."""
    columns = report.columns()
    if columns is None:
        return rows
    before = sum(max(map(len, column)) + 2 for column in zip(*(row[:4] for row in [_HEADER, *rows]), strict=True))
    room = max(20, columns - before)
    return [[*row[:4], row[4] if len(row[4]) <= room else row[4][: room - 3] + "..."] for row in rows]


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
