"""`collc tune`: measures a library on this machine, and writes the file for COLLC_TUNING."""

from __future__ import annotations

import os
from dataclasses import asdict, astuple, fields
from pathlib import Path

import click

from collc.bench.find import find_library
from collc.bench.launchers import find_place
from collc.bench.worker import serve_place
from collc.cli import report
from collc.cli.bench import check_job, refusing_once
from collc.cli.report import SIZE, debug_option, emit_json, json_option, note, progress, table
from collc.cli.sections import SectionedCommand
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import short_size
from collc.errors import RunError, UsageError
from collc.ir.printer import print_weights
from collc.process import environment
from collc.tune.machine import SIZES, Costs, microseconds, tune_machine
from collc.tune.run import Tuned, TuneReport, TuneRequest, check_request, tune
from collc.tune.worker import TunedRank


@click.command("tune", cls=SectionedCommand)
@click.argument("library", metavar="[LIB]", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write [LIB with .tuning for .so].")
@click.option(
    "--collective",
    "collectives",
    multiple=True,
    type=click.Choice([c.value for c in COMPILED]),
    help="Repeatable [all].",
)
@click.option("--ranks", type=click.IntRange(min=2), help="Ranks to start, one process each [as compiled].")
@click.option(
    "--launcher",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="auto: under torchrun, mpirun, mpiexec or srun, this process is one of the ranks.",
)
@click.option("-b", "--minbytes", type=SIZE, default="1K", show_default=True)
@click.option("-e", "--maxbytes", type=SIZE, default="16M", show_default=True)
@click.option("-f", "--stepfactor", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--fresh", is_flag=True, help="Discard the measurements of an interrupted run.")
@click.option(
    "--machine", is_flag=True, help="Measure copies on this machine instead, and find the best way to copy each size."
)
@json_option
@debug_option
def command(
    library: Path | None,
    output: Path | None,
    collectives: tuple[str, ...],
    ranks: int | None,
    launcher: str,
    minbytes: int,
    maxbytes: int,
    stepfactor: int,
    fresh: bool,
    machine: bool,
    as_json: bool,
) -> None:
    """Measure LIB, or the one libcollc-*.so here, and write the best program for each size on this machine.

    With --machine, write the file that every library here reads, to the cache or -o for COLLC_MACHINE. This runs the
    library's code: use it only if you trust it (`collc inspect` and `collc verify` do not run it).
    """
    if machine:
        _require_no_calls(click.get_current_context())
        _tune_machine(find_library(library), output, as_json)
        return
    place = find_place(os.environ) if launcher == "auto" else None
    path = find_library(library)
    request = TuneRequest(
        library=path,
        output=output,
        collectives=tuple(map(Collective, collectives)),
        ranks=ranks if place is None else place.size,
        place=place,
        min_bytes=minbytes,
        max_bytes=maxbytes,
        factor=stepfactor,
        fresh=fresh,
    )
    with refusing_once(place):
        if place is not None:
            check_job(place, path, "host", ranks)
        check_request(request)
    if place is not None and place.rank > 0:
        with environment("COLLC_TUNING", None):
            if not serve_place(path, place, TunedRank):
                raise SystemExit(RunError.exit_code)  # rank 0 says why
        return
    status = progress("collc tune")
    try:
        found = tune(request, status)
    finally:
        status("")
    if as_json:
        emit_json(found.to_json())
        return
    _print(found)


def _require_no_calls(context: click.Context) -> None:
    """Raises UsageError if an option for the library's calls is given, because --machine does not measure calls."""
    about_calls = ("collectives", "ranks", "launcher", "minbytes", "maxbytes", "stepfactor", "fresh")
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        if option.name in about_calls and given:
            name = option.opts[-1]
            raise UsageError("--machine measures copies, no calls", where=name, hint=f"omit {name} or --machine")


def _tune_machine(library: Path, output: Path | None, as_json: bool) -> None:
    found = tune_machine(library, output)
    if as_json:
        emit_json(found.to_json())
        return
    for distance, costs in found.costs.items():
        where = "near each other" if distance == "near" else "far apart"
        report.line(f"cores {where}" + (", of an earlier run" if distance in found.kept else ""))
        rows = [[short_size(size), *map(microseconds, astuple(ways))] for size, ways in costs.items()]
        report.text(table(["bytes", *(field.name.replace("_", " ") for field in fields(Costs))], rows))
        for name, value in asdict(found.thresholds[distance]).items():
            report.line(f"  {name} from {value} bytes" if value is not None else f"  {name} never")
    if found.moved:
        measurements = found.rounds * len(SIZES)
        note(f"{found.moved} of {measurements} measurements were on other cores than most: measure again later")
    use = "" if output is None else f": use it with COLLC_MACHINE={found.output}"
    report.line(f"wrote {found.output} for {found.machine}, {found.rounds} rounds in {found.seconds:.1f} s{use}")


def _print(tuned: TuneReport) -> None:
    for one in tuned.tuned:
        report.line(f"{one.collective.value}, {tuned.nranks} ranks")
        report.text(table(["bytes", "before", "us", "after", "us", "faster by"], _rows(one)))
        for row in one.rows:
            weights = f" with {print_weights(row.weights)}" if row.weights else ""
            report.line(f"  from {row.min_bytes:>12} bytes: {one.label(row.program)}{weights}")
    if tuned.resumed:
        note(f"{tuned.resumed} sizes were measured by an earlier run that was interrupted")
    if tuned.unsettled:
        note(f"{tuned.unsettled} measurements did not settle: other work disturbs this machine")
    where = " on all machines" if tuned.machines > 1 else ""
    report.line(f"wrote {tuned.output} for {tuned.machine}: use it with COLLC_TUNING={tuned.output}{where}")


def _rows(one: Tuned) -> list[list[str]]:
    return [
        [
            short_size(p.bytes),
            one.label(p.embedded),
            f"{p.embedded_us:.2f}",
            one.label(p.chosen),
            f"{p.chosen_us:.2f}",
            f"{p.embedded_us / p.chosen_us - 1:.0%}" + ("" if p.settled else " ?"),
        ]
        for p in one.points
    ]
