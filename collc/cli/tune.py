"""`collc tune`: measure a library here and write the file for COLLC_TUNING."""

from __future__ import annotations

from pathlib import Path

import click

from collc.bench.find import find_library
from collc.cli import report
from collc.cli.report import SIZE, debug_option, emit_json, json_option, note, progress, table
from collc.collectives.model import COMPILED, Collective
from collc.collectives.sizes import short_size
from collc.tune.run import Tuned, TuneReport, TuneRequest, tune


@click.command("tune")
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
@click.option("-b", "--minbytes", type=SIZE, default="1K", show_default=True)
@click.option("-e", "--maxbytes", type=SIZE, default="16M", show_default=True)
@click.option("-f", "--stepfactor", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--fresh", is_flag=True, help="Discard the measurements of an interrupted run.")
@json_option
@debug_option
def command(
    library: Path | None,
    output: Path | None,
    collectives: tuple[str, ...],
    ranks: int | None,
    minbytes: int,
    maxbytes: int,
    stepfactor: int,
    fresh: bool,
    as_json: bool,
) -> None:
    """Measure LIB, or the one libcollc-*.so here, and write which program suits which size on this machine.

    This runs the library's code: use it only if you trust it (`collc inspect` and `collc verify` do not run it).
    """
    request = TuneRequest(
        library=find_library(library),
        output=output,
        collectives=tuple(map(Collective, collectives)),
        ranks=ranks,
        min_bytes=minbytes,
        max_bytes=maxbytes,
        factor=stepfactor,
        fresh=fresh,
    )
    status = progress("collc tune")
    try:
        found = tune(request, status)
    finally:
        status("")
    if as_json:
        emit_json(found.to_json())
        return
    _print(found)


def _print(tuned: TuneReport) -> None:
    for one in tuned.tuned:
        report.line(f"{one.collective.value}, {tuned.nranks} ranks")
        report.text(table(["bytes", "before", "us", "after", "us", "faster by"], _rows(one)))
        for row in one.rows:
            report.line(f"  from {row.min_bytes:>12} bytes: {one.label(row.program)}")
    if tuned.resumed:
        note(f"{tuned.resumed} sizes were measured by an earlier run that was interrupted")
    if tuned.unsettled:
        note(f"{tuned.unsettled} measurements did not settle: other work disturbs this machine")
    report.line(f"wrote {tuned.output} for {tuned.machine}: use it with COLLC_TUNING={tuned.output}")


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
