"""`collc simulate`: how long a plan takes on a topology, by size; the model's choice, NCCL's beside it, and traces."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from collc.api.forecasts import MOST_CHANNELS, PROTOCOLS, Wish, parameters_of, predict, simulator_of
from collc.choose.calls import default_calls
from collc.choose.table import Table
from collc.cli import report
from collc.cli.plan_text import host_text
from collc.cli.report import SIZE, debug_option, emit_json, json_option, note, progress, table
from collc.cli.sections import SectionedCommand
from collc.cli.simulate_classes import require_no_choice, simulate_classes
from collc.cli.simulate_net import require_alone, simulate_net
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import short_size, size_series
from collc.errors import PackingError, UsageError
from collc.outputs import check_output, write_text
from collc.show.curves import Curve, Plot, Point, draw_plots
from collc.simulator.claims import CLASSES, Claims, size_class
from collc.simulator.generations import MACHINES
from collc.simulator.nccl import Baseline, Nccl
from collc.simulator.nccl.fabrics import FABRICS
from collc.simulator.nccl.versions import DEFAULT as NCCL_VERSION
from collc.simulator.nccl.versions import era_of
from collc.simulator.plans import PLANS
from collc.simulator.plot import check_plot
from collc.simulator.report import chrome_trace, critical_path
from collc.simulator.run import LEAST_CHUNK, Prediction, Simulator
from collc.topology.allocation import parse_gpus
from collc.topology.graph import plan_graph
from collc.topology.load import load_topology
from collc.topology.model import PlanGraph
from collc.topology.staging import staged_pairs
from collc.training.net_file import read_net
from collc.training.scaling import Asked


@dataclass(frozen=True)
class _Document:
    """The results of one collective: predictions by size, the table of choices, the baselines, and the claims."""

    found: list[Prediction]
    choices: Table | None
    beside: dict[str, list[Baseline]]
    claims: Claims


@click.command("simulate", cls=SectionedCommand)
@click.argument("topology", metavar="TOPO")
@click.option(
    "--collective",
    "collectives",
    multiple=True,
    type=click.Choice([c.value for c in COMPILED]),
    help="Repeatable [all_reduce].",
)
@click.option("--root", type=click.IntRange(min=0), help="Root rank of a rooted collective [0].")
@click.option("--gpus", metavar="LIST", help="The GPUs in rank order, such as 0,1,4,7 or server0:0-2 [all].")
@click.option("--links", metavar="CLASSES", help="Link classes to use instead of the fast one, or 'all'.")
@click.option(
    "--classes",
    metavar="CLASSES",
    help="Split every call over classes of links: nvlink, pcie (through host memory), net (NICs), or 'all'.",
)
@click.option("-b", "--minbytes", type=SIZE, default="1K", show_default=True)
@click.option("-e", "--maxbytes", type=SIZE, default="1G", show_default=True)
@click.option("-i", "--stepbytes", type=SIZE, default="1M", show_default=True, help="Step between sizes if -f is 1.")
@click.option("-f", "--stepfactor", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--plan", type=click.Choice([*map(str, PLANS)]), help="Simulate this plan instead of choosing.")
@click.option("--proto", type=click.Choice(PROTOCOLS, case_sensitive=False), help="Simulate only this protocol.")
@click.option("--chunk", type=SIZE, help="Maximum bytes per chunk instead of choosing.")
@click.option("--channels", type=click.IntRange(1, MOST_CHANNELS), help="Number of channels instead of choosing.")
@click.option(
    "--model",
    type=click.Choice(sorted(MACHINES)),
    help="Parameters of this GPU generation [from the topology's gpu_model].",
)
@click.option("--params", type=click.Path(path_type=Path), metavar="FILE", help="Take parameters from a file.")
@click.option(
    "--model-file",
    type=click.Path(path_type=Path),
    metavar="NET",
    help="Training steps of a model: a file, or one that comes with collc (docs/simulate.md).",
)
@click.option("--scaling", is_flag=True, help="With --model-file: also on 1, 2, 4, ... of the GPUs.")
@click.option(
    "--throughput/--latency",
    default=True,
    help="Time of consecutive calls, as in nccl-tests [default], or of one call.",
)
@click.option("--copy-engine", is_flag=True, help="Move chunks over PCIe with launched copies, as Blink does.")
@click.option("--compare", type=click.Choice(["nccl"]), help="Compare with NCCL, which chooses by its own rules.")
@click.option(
    "--nccl-version", metavar="V", help=f"With --compare: the NCCL version whose rules apply [{NCCL_VERSION}]."
)
@click.option(
    "--fabric", type=click.Choice(sorted(FABRICS)), help="With --compare: the network [from the names of the NICs]."
)
@click.option("--plot", type=click.Path(path_type=Path), help="With --compare: plot to a file (.svg, .png, .pdf).")
@click.option("--trace", type=click.Path(path_type=Path), help="Chrome trace of the largest size, for Perfetto.")
@json_option
@debug_option
def command(
    topology: str,
    collectives: tuple[str, ...],
    root: int | None,
    gpus: str | None,
    links: str | None,
    classes: str | None,
    minbytes: int,
    maxbytes: int,
    stepbytes: int,
    stepfactor: int,
    plan: str | None,
    proto: str | None,
    chunk: int | None,
    channels: int | None,
    model: str | None,
    params: Path | None,
    model_file: Path | None,
    scaling: bool,
    throughput: bool,
    copy_engine: bool,
    compare: str | None,
    nccl_version: str | None,
    fabric: str | None,
    plot: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Predict how long collectives take on TOPO (a file or a machine of `collc topologies`); choose plans by size."""
    # Plans and programs are millions of objects without cycles: looking for cycles costs a third of the time.
    gc.set_threshold(200_000)
    sizes = _sizes(minbytes, maxbytes, stepbytes, stepfactor)
    if plot is not None and compare is None:
        raise UsageError("--plot draws a comparison", hint="add --compare nccl")
    if scaling and model_file is None:
        raise UsageError("--scaling is about training steps", hint="add --model-file")
    if (nccl_version or fabric) is not None and compare is None and model_file is None:
        given = "--nccl-version" if nccl_version is not None else "--fabric"
        raise UsageError(f"{given} is about NCCL", hint="add --compare nccl")
    era_of(nccl_version or NCCL_VERSION)
    if root is not None and not any(Collective(name).rooted for name in collectives):
        names = ", ".join(collectives) or Collective.ALL_REDUCE.value
        raise UsageError(f"{names} has no root", where="--root", hint="omit --root")
    if chunk is not None and chunk < LEAST_CHUNK:
        raise UsageError(
            f"{chunk} bytes is not a valid chunk size", where="--chunk", hint=f"choose {LEAST_CHUNK} or more"
        )
    if (plot or trace) is not None and len(collectives) > 1:
        raise UsageError("--plot and --trace take one --collective")
    for path in filter(None, (trace, plot)):
        check_output(path, replaced=False)
    if plot is not None:
        check_plot(plot)
    if model_file is not None:
        calls = {
            "--classes": classes,
            "--collective": collectives,
            "--root": root,
            "--proto": proto,
            "--chunk": chunk,
            "--channels": channels,
        }
        require_alone({**calls, "--plot": plot, "--trace": trace})
        net = read_net(model_file)
    machine = load_topology(topology)
    asked_gpus = None if gpus is None else parse_gpus(machine, gpus)
    if model_file is not None:
        parameters, why = parameters_of(model, params, machine.gpu_model, copy_engine)
        asked = Asked(links, plan, nccl_version or NCCL_VERSION, fabric)
        gpu_names = asked_gpus or [gpu.name for gpu in machine.gpus]
        simulate_net(machine, gpu_names, net, parameters, why, asked, scaling=scaling, as_json=as_json)
        return
    parameters, why = parameters_of(model, params, machine.gpu_model, copy_engine)
    if classes is not None:
        require_no_choice(
            {"--links": links, "--plan": plan, "--proto": proto, "--chunk": chunk, "--channels": channels}
        )
        require_no_choice({"--compare": compare, "--plot": plot, "--trace": trace})
        wanted = [Collective(name) for name in collectives or (Collective.ALL_REDUCE.value,)]
        simulate_classes(
            machine, asked_gpus, classes, wanted, root, sizes, parameters, why, throughput=throughput, as_json=as_json
        )
        return
    graph = plan_graph(machine, asked_gpus, links)
    wish = Wish(plan, proto, chunk, channels)
    changed = params is not None or copy_engine
    documents: list[_Document] = []
    if not as_json:
        report.text("\n".join(filter(None, [why, _MEANING[throughput], host_text(graph)])))
    for name in collectives or (Collective.ALL_REDUCE.value,):
        simulator = simulator_of(graph, Collective(name), root, parameters)
        found, choices = predict(simulator, wish, sizes, progress("simulate"))
        if trace is not None:
            _write_trace(default_calls(simulator).simulator if wish == Wish() else simulator, found[-1], trace)
        if throughput:
            found = [dataclasses.replace(p, time_us=p.period_us(parameters)) for p in found]
        nccl = Nccl(simulator, nccl_version or NCCL_VERSION, fabric)
        beside = _nccl(nccl, sizes, throughput) if compare else {}
        claims = Claims(graph, simulator.collective, parameters.name, nccl.fabric.name, changed)
        documents.append(_Document(found, choices, beside, claims))
        if not as_json:
            report.text(_text(graph, documents[-1]))
    if plot is not None:
        _plot(plot, graph.name, documents[0].found, documents[0].beside)
    if as_json:
        staged = {"host_pairs": [list(pair) for pair in pairs]} if (pairs := staged_pairs(graph)) else {}
        emit_json({**_json(graph, documents), "parameters": why, "times": _MEANING[throughput], **staged})
    for path in filter(None, (trace, plot)):
        note(f"wrote {path}")


_MEANING = {
    True: "times per call of calls in a row, as nccl-tests prints them (--throughput)",
    False: "times of one call from its launch to its end on the last rank (--latency)",
}


def _sizes(least: int, most: int, step: int, factor: int) -> list[int]:
    if least == 0:
        raise UsageError("-b 0 moves nothing", hint="use -b 8 -f 2")
    return size_series(least, most, factor, step)


def _nccl(nccl: Nccl, sizes: Sequence[int], throughput: bool) -> dict[str, list[Baseline]]:
    """NCCL's own choice and each of its algorithms, as far as it has them here."""
    found: dict[str, list[Baseline]] = {}
    try:
        algorithms = nccl.choices()
    except PackingError as error:
        note(f"nccl is left out: {error}")
        return found
    for algorithm in (None, *algorithms):
        label = "nccl" if algorithm is None else f"nccl-{algorithm.lower()}"
        try:
            line = [nccl.predict(size, algorithm) for size in sizes]
        except PackingError:
            continue
        except UsageError as error:
            note(f"{label} is left out: {error}")
            continue
        found[label] = [p.in_a_row() for p in line] if throughput else line
    return found


def _write_trace(simulator: Simulator, last: Prediction, path: Path) -> None:
    whole = last if not last.extrapolated else simulator.predict(last.variant, last.bytes, whole=True)
    program = simulator.lowered(whole.variant.plan, whole.variant.channels)[1]
    write_text(path, json.dumps(chrome_trace(whole, program, simulator.graph)))


def _plot(path: Path, machine: str, own: Sequence[Prediction], beside: Mapping[str, Sequence[Baseline]]) -> None:
    """Times of NCCL and of its algorithms over ours, and bus bandwidths, by size."""
    name = f"{own[0].collective.value} on {machine}, simulated"
    ratios = []
    for i, (label, line) in enumerate(beside.items()):
        pairs = zip(line, own, strict=True)
        points = tuple(Point(p.bytes, p.time_us / us.time_us) for p, us in pairs if us.time_us)
        ratios.append(Curve(label, points, i + 1))
    lines: dict[str, Sequence[Prediction | Baseline]] = {"collc": own, **beside}
    widths = [Curve(label, tuple(Point(p.bytes, p.busbw_gbps) for p in line)) for label, line in lines.items()]
    plots = [
        Plot("above 1 collc is faster", "time over collc's", tuple(ratios), one=True),
        Plot("", "bus bandwidth, GB/s", tuple(widths)),
    ]
    draw_plots(path, plots, name)


def _link_names(graph: PlanGraph) -> list[str]:
    return [f"{graph.vertices[x.src].name} -> {graph.vertices[x.dst].name}" for x in graph.links]


def _json(graph: PlanGraph, documents: Sequence[_Document]) -> dict[str, Any]:
    names = _link_names(graph)
    details = []
    for document in documents:
        for p in document.found:
            details.append(
                {
                    "collective": p.collective.value,
                    "bytes": p.bytes,
                    "chunk_bytes": p.variant.chunk_bytes,
                    "channels": p.variant.channels,
                    "extrapolated": p.extrapolated,
                    "utilization": dict(zip(names, p.utilization(graph), strict=True)),
                    "critical_path": critical_path(p).to_json(),
                    "judged": document.claims.claim(p.bytes, ours=True).to_json(p.time_us),
                }
            )
    value: dict[str, Any] = {"rows": [p.row() for document in documents for p in document.found], "details": details}
    tables = {d.found[0].collective.value: [c.to_json() for c in d.choices.choices] for d in documents if d.choices}
    if tables:
        value["choices"] = tables
    if any(document.beside for document in documents):
        value["compare"] = {
            d.found[0].collective.value: {
                label: [{**p.row(), "judged": d.claims.claim(p.bytes).to_json(p.time_us)} for p in line]
                for label, line in d.beside.items()
            }
            for d in documents
        }
    return value


def _text(graph: PlanGraph, document: _Document) -> str:
    found, beside = document.found, document.beside
    header = ["bytes", "plan", "proto", "chunk", "channels", "time us", "algbw", "busbw", *beside]
    rows = []
    for i, p in enumerate(found):
        cells = [str(p.bytes), p.variant.plan, p.variant.protocol, short_size(p.variant.chunk_bytes)]
        cells += [str(p.variant.channels), f"{p.time_us:.2f}", f"{p.algbw_gbps:.2f}", f"{p.busbw_gbps:.2f}"]
        for label, line in beside.items():
            cells.append(_beside(document.claims, label, line[i], p.time_us))
        rows.append(cells)
    lines = [
        f"{found[0].collective.with_root(found[0].root)} on {graph.name}: {graph.nranks} ranks, simulated",
        table(header, rows),
    ]
    if document.choices is not None:
        lines.append("choices:")
        lines += [f"  from {c.min_bytes:>12} bytes: {c.variant.label()}  ({c.why})" for c in document.choices.choices]
    lines += _claimed(document)
    lines.append(_last(graph, found[-1]))
    return "\n".join(lines)


def _beside(claims: Claims, label: str, p: Baseline, time_us: float) -> str:
    """A baseline's time, as a range where the error was measured, and how many times ours it takes."""
    span = claims.claim(p.bytes).range_us(p.time_us) if label == "nccl" else None
    shown = f"{p.time_us:.2f}" if span is None else f"{span[0]:.2f}-{span[1]:.2f}"
    ratio = f"x{p.time_us / time_us:.2f}" if time_us else ""
    name = f"{p.algorithm} {p.protocol}" if label == "nccl" else p.protocol
    return f"{shown} {name} {ratio}".rstrip()


def _claimed(document: _Document) -> list[str]:
    """One line per class of sizes: whether figures like these were ever compared with measurements."""
    lines = []
    for which in CLASSES:
        sizes = [p.bytes for p in document.found if size_class(p.bytes) == which]
        if not sizes:
            continue
        lines.append(f"{which}: this plan {document.claims.claim(sizes[0], ours=True).text}")
        if document.beside:
            lines.append(f"{which}: NCCL {document.claims.claim(sizes[0]).text}")
    return lines


def _last(graph: PlanGraph, last: Prediction) -> str:
    """The largest size in detail: what its time is made of and which links are busy."""
    path = critical_path(last)
    waits = ", ".join(f"{count} by {name}" for name, count in path.waits.items())
    of = f" (of a call {last.scale:.3g} times smaller)" if last.extrapolated else ""
    busy = sorted(zip(last.utilization(graph), _link_names(graph), strict=True), key=lambda pair: (-pair[0], pair[1]))
    shown = ", ".join(f"{name} {share:.0%}" for share, name in busy[:8])
    mean = sum(share for share, _ in busy) / len(busy) if busy else 0.0
    return (
        f"critical path at {last.bytes} bytes{of}: launch {path.launch:.2f} us, {len(path.steps)} steps "
        f"{path.work:.2f} us, hops between them {path.hop:.2f} us; released {waits or 'by nothing'}\n"
        f"links: mean {mean:.0%}; busiest {shown or 'none'}"
    )
