"""`collc export`: topologies and plans for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from collc.build.plans import SolutionCache
from collc.cli import report
from collc.cli.export_mscclpp import ChunkOptions, export_mscclpp, write_text
from collc.cli.export_tuner import TunerWish, export_tuner
from collc.cli.report import compact, debug_option, json_option, table
from collc.cli.sections import SectionedCommand
from collc.collectives.model import Collective
from collc.errors import PackingError, UsageError
from collc.export.drawings import csv_text, dot_text, graphml_text
from collc.export.nccl_graph import device_numbers, read_graphs, write_graphs
from collc.export.orders import Orders, best_pair, kinds_of, ring_links
from collc.export.parts import MAX_CHUNKS
from collc.graphs import to_networkx
from collc.outputs import check_output
from collc.packing import plan
from collc.simulator.generations import MACHINES
from collc.simulator.nccl.fabrics import FABRICS
from collc.simulator.nccl.versions import DEFAULT
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph, Topology

_DRAWN = {"dot": dot_text, "graphml": graphml_text, "csv": csv_text}
FORMATS = ("nccl-graph", "nccl-tuner", "mscclpp", *_DRAWN)
# The collectives that NCCL does with rings and trees.
_SERVED = tuple(c for c in Collective if c.uses_trees)


@click.command(cls=SectionedCommand)
@click.argument("topology", metavar="TOPO")
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The file [standard output; nccl-tuner: libnccl-tuner-<name>.so].",
)
@click.option("--gpus", metavar="LIST", help="The GPUs in rank order, such as 0,1,4,7 [all].")
@click.option("--links", metavar="CLASSES", help="Link classes to use instead of the fast one, or 'all'.")
@click.option(
    "--collective",
    type=click.Choice([c.value for c in Collective]),
    help="The plan of this collective; with dot, graphml and csv instead of the links.",
)
@click.option("--root", type=click.IntRange(min=0), help="Root rank of a rooted collective [0].")
@click.option(
    "--chunks",
    type=click.IntRange(1, MAX_CHUNKS),
    help="With mscclpp: chunks per buffer [the smallest power of two that costs less than 1%].",
)
@click.option("--in-place", is_flag=True, help="With mscclpp: for calls whose output is their input.")
@click.option(
    "--allocations", metavar="WHICH", help="With nccl-tuner: sets of GPUs as in `collc compile --allocations`."
)
@click.option(
    "--measured", type=click.Path(path_type=Path), metavar="FILE", help="With nccl-tuner: CSV of measured times."
)
@click.option("--model", type=click.Choice(sorted(MACHINES)), help="With nccl-tuner: parameters of this generation.")
@click.option(
    "--params", type=click.Path(path_type=Path), metavar="FILE", help="With nccl-tuner: parameters from a file."
)
@click.option(
    "--nccl-version",
    "version",
    metavar="V",
    help=f"With nccl-tuner: the NCCL version whose rules it changes [{DEFAULT}].",
)
@click.option(
    "--fabric", type=click.Choice(sorted(FABRICS)), help="With nccl-tuner: the network [from the names of the NICs]."
)
@json_option
@debug_option
def command(
    topology: str,
    form: str,
    output: Path | None,
    gpus: str | None,
    links: str | None,
    collective: str | None,
    root: int | None,
    chunks: int | None,
    in_place: bool,
    as_json: bool,
    **tuner: Any,
) -> None:
    """Write TOPO, or a plan for it, in a format of other programs.

    nccl-graph: the rings and chains for NCCL_GRAPH_FILE that carry the most on one server, and their rates next to the
    proved optimum (docs/inside-nccl.md).

    nccl-tuner: a plugin for NCCL_TUNER_PLUGIN that chooses algorithm and protocol by size where the model, or
    --measured, finds better ones than NCCL's own.

    mscclpp: an execution plan of MSCCL++ for one collective on one server (docs/mscclpp.md).
    """
    wish, options = TunerWish(gpus=gpus, links=links, **tuner), ChunkOptions(chunks, in_place)
    if options.given() and form != "mscclpp":
        raise UsageError(f"{options.given()[0]} belongs to --format mscclpp", where=options.given()[0])
    if form == "nccl-tuner":
        if collective is not None or root is not None:
            raise UsageError("nccl-tuner serves every collective", hint="leave --collective and --root out")
        export_tuner(topology, wish, output, as_json)
        return
    if wish.given():
        raise UsageError(f"{wish.given()[0]} belongs to --format nccl-tuner", where=wish.given()[0])
    if output is not None:
        check_output(output, replaced=False)
    if form == "mscclpp":
        if root is not None:
            raise UsageError("--root belongs to a rooted --collective", where="--root")
        export = export_mscclpp(topology, options, gpus, links, collective)
        write_text(export.text, output, as_json)
        if as_json:
            text = None if output else export.text
            report.emit_json({"format": form, "output": _name(output), "text": text, **export.to_json()})
            return
        for line in export.lines():
            report.note(line)
        return
    machine = load_topology(topology)
    chosen = None if gpus is None else parse_gpus(machine, gpus)
    if form != "nccl-graph":
        _drawn(machine, form, output, chosen, links, collective, root, as_json)
        return
    if collective is not None or root is not None:
        raise UsageError("nccl-graph serves every collective", hint="leave --collective and --root out")
    found = _nccl(machine, chosen, links)
    write_text(found.text, output, as_json)
    if as_json:
        report.emit_json(found.to_json(output))
        return
    for line in found.lines():
        report.note(line)


def _drawn(
    machine: Topology,
    form: str,
    output: Path | None,
    chosen: list[str] | None,
    links: str | None,
    collective: str | None,
    root: int | None,
    as_json: bool,
) -> None:
    if root is not None and (collective is None or not Collective(collective).rooted):
        raise UsageError("--root belongs to a rooted --collective", where="--root")
    if collective is not None:
        graph = plan_graph(machine, chosen, links)
        item = Collective(collective)
        if root is not None and root >= graph.nranks:
            raise UsageError(f"no rank {root} to be the root", hint=f"ranks are 0 to {graph.nranks - 1}")
        packed = plan(graph, item, (root or 0) if item.rooted else None, store=SolutionCache())
        text = _DRAWN[form](to_networkx(packed, graph))
    elif chosen is not None or links is not None:
        text = _DRAWN[form](to_networkx(plan_graph(machine, chosen, links)))
    else:
        text = _DRAWN[form](to_networkx(machine))
    write_text(text, output, as_json)
    if as_json:
        report.emit_json({"format": form, "output": _name(output), "text": None if output else text})


def _name(output: Path | None) -> str | None:
    return None if output is None else str(output)


@dataclass(frozen=True)
class _Graphs:
    """A graph file and NCCL's rates with it.

    Attributes:
        text: the graph file.
        rates: (collective, GB/s of NCCL's channels, the proved optimum in GB/s).
        note: which links the rings use, if the fast ones do not suffice.
    """

    graph: PlanGraph
    text: str
    rings: Orders
    chains: Orders
    rates: list[tuple[Collective, Fraction, Fraction]]
    note: str | None

    def lines(self) -> list[str]:
        """Returns the summary for people, on standard error."""
        lines = [] if self.note is None else [self.note]
        for what, orders in (("rings", self.rings), ("chains", self.chains)):
            count, most = len(orders.channels), float(orders.bound)
            proof = "no others carry more" if orders.proved else f"channels of any bandwidths carry {most:.5g} at most"
            lines.append(f"{what}: {count} x {compact(orders.gbps)} = {compact(orders.total)} GB/s; {proof}")
        lines += [
            table(
                ["collective", "NCCL can carry", "optimum", "share"],
                [[c.value, compact(a), compact(b), f"{float(a / b):.0%}"] for c, a, b in self.rates],
            ),
            "For jobs whose communicators all have exactly these GPUs: NCCL reads the file in each of them.",
        ]
        return [part for line in lines for part in line.split("\n")]

    def to_json(self, output: Path | None) -> dict[str, object]:
        return {
            "format": "nccl-graph",
            "output": _name(output),
            "text": None if output else self.text,
            "channels": len(self.rings.channels),
            "ring_gbps": str(self.rings.gbps),
            "ring_bound_gbps": str(self.rings.bound),
            "chain_gbps": str(self.chains.gbps),
            "chain_bound_gbps": str(self.chains.bound),
            "rates": [{"collective": c.value, "nccl_gbps": str(a), "optimum_gbps": str(b)} for c, a, b in self.rates],
        }


def _nccl(machine: Topology, chosen: list[str] | None, links: str | None) -> _Graphs:
    graph, note = ring_links(machine, chosen, links)
    if graph.nranks < 2:
        raise UsageError("a graph file joins two GPUs or more", where=graph.name)
    device_numbers(graph)
    rings, chains = best_pair(graph)
    if rings is None and links is None:
        raise PackingError("no ring closes, over any links", where=graph.name)
    if rings is None:
        text = f"no ring closes over {kinds_of(graph)} links"
        raise PackingError(text, where=graph.name, hint="leave --links out")
    text = write_graphs(graph, rings, chains)
    back = read_graphs(text, graph.name)
    assert {i: len(g.channels) for i, g in back.items()} == {0: len(rings.channels), 1: len(chains.channels)}
    n = graph.nranks
    rates = []
    for item in _SERVED:
        best = plan(graph, item, 0 if item.rooted else None, store=SolutionCache())
        rounds = item.traits.bus_rounds
        carried = rings.total * n / (rounds * (n - 1)) if rounds else rings.total
        if item is Collective.ALL_REDUCE:
            carried = max(carried, chains.total)
        assert best.rate is not None
        rates.append((item, carried, best.rate))
    return _Graphs(graph, text, rings, chains, rates, note)
