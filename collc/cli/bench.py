"""`collc bench`: measures a library, checks its results, and prints the table of nccl-tests.

There is one process per rank: this command starts them, or torchrun, mpirun or srun does, and then rank 0 prints.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from collc.bench.breakdown import VARIABLE, check_counts, show
from collc.bench.data import OPS, TYPES, parse_names
from collc.bench.find import find_library
from collc.bench.launchers import Place, find_place
from collc.bench.runner import BenchRequest, Row, Serving, cases, library_ranks, run_bench
from collc.bench.table import HEADER, devices, footer, left_cells, measured_cells
from collc.bench.worker import serve_place
from collc.build.numbering import FOUND, links_file
from collc.checker.library import read_manifest
from collc.cli import report
from collc.cli.report import SIZE, debug_option, emit_json, json_option
from collc.cli.sections import SectionedCommand
from collc.collectives.model import COMPILED, Collective
from collc.errors import RunError, UsageError
from collc.limits import limited
from collc.process import environment
from collc.topology.load import load_topology


@click.command("bench", cls=SectionedCommand)
@click.argument("library", metavar="[LIB]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--collective",
    "collectives",
    multiple=True,
    type=click.Choice([c.value for c in COMPILED]),
    help="Repeatable [all].",
)
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks to start, one process each [as compiled].")
@click.option(
    "--launcher",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="auto: under torchrun, mpirun, mpiexec or srun, this process is one of the ranks.",
)
@click.option(
    "--topology",
    metavar="TOPO",
    help="This machine's topology after losses; the programs for it run (compile --survive 1).",
)
@click.option("-b", "--minbytes", type=SIZE, default="8", show_default=True)
@click.option("-e", "--maxbytes", type=SIZE, default="16M", show_default=True)
@click.option("-i", "--stepbytes", type=SIZE, default="1M", show_default=True, help="Step between sizes if -f is 1.")
@click.option("-f", "--stepfactor", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("-n", "--iters", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("-w", "--warmup_iters", type=click.IntRange(min=0), default=5, show_default=True)
@click.option(
    "-c", "--check", type=click.IntRange(min=0), default=1, show_default=True, help="Number of checked runs; 0: none."
)
@click.option("-d", "--datatype", default="float", show_default=True, help="Types, separated by commas, or all.")
@click.option("-o", "--op", default="sum", show_default=True, help="Operations, separated by commas, or all.")
@click.option("-r", "--root", default="0", show_default=True, help="A rank, or all.")
@click.option("--breakdown", is_flag=True, help="Also print time spent waiting, copying and reducing, per channel.")
@json_option
@debug_option
def command(
    library: Path | None,
    collectives: tuple[str, ...],
    ranks: int | None,
    launcher: str,
    topology: str | None,
    minbytes: int,
    maxbytes: int,
    stepbytes: int,
    stepfactor: int,
    iters: int,
    warmup_iters: int,
    check: int,
    datatype: str,
    op: str,
    root: str,
    breakdown: bool,
    as_json: bool,
) -> None:
    """Measure LIB, or the one libcollc-*.so here. Exit code 1 if an element is wrong.

    This runs the library's code: use it only if you trust it (`collc inspect` and `collc verify` do not run it).

    One process per rank; a library for CUDA has all its ranks in one process, on the GPUs in turn.
    """
    if breakdown:
        click.get_current_context().with_resource(environment(VARIABLE, "1"))
    place = find_place(os.environ) if launcher == "auto" else None
    path = find_library(library)
    with limited(path):
        manifest = read_manifest(path)
    if topology is not None:
        found = load_topology(topology)
        os.environ[FOUND] = str(links_file(found))
        ranks = len(found.gpus) if ranks is None and place is None else ranks
    with refusing_once(place):
        if place is not None:
            check_job(place, path, manifest["target"], ranks)
        if breakdown:
            check_counts(path, manifest)
        held = {program["collective"] for allocation in manifest["allocations"] for program in allocation["programs"]}
        request = BenchRequest(
            library=path,
            collectives=[Collective(c) for c in collectives] or [c for c in COMPILED if c.value in held],
            min_bytes=minbytes,
            max_bytes=maxbytes,
            step_bytes=stepbytes,
            step_factor=stepfactor,
            iters=iters,
            warmup=warmup_iters,
            check=check,
            types=parse_names(datatype, TYPES, "type"),
            ops=parse_names(op, OPS, "operation"),
            root=_root(root),
            ranks=ranks if place is None else place.size,
            ranks_here=None if place is None else place.here,
        )
        cases(request)
    if place is not None and place.rank > 0:
        if not serve_place(path, place):
            raise SystemExit(RunError.exit_code)  # rank 0 says why
        return
    serving: list[Serving] = []

    printer = _Printer(path, manifest, request, place)
    if not as_json:
        printer.begin()

    def served(one: Serving) -> None:
        serving.append(one)
        printer.machines = one.machines
        if not as_json and one.lost:
            report.line(f"# {one.text()}")

    rows = run_bench(request, (lambda row: None) if as_json else printer, place, served)
    if as_json:
        plan = {"serving": dataclasses.asdict(serving[0])} if serving else {}
        emit_json({"rows": [row.to_json() for row in rows], **plan})
    else:
        report.text(footer(rows))
    wrong = sum(row.wrong or 0 for row in rows)
    if wrong:
        raise RunError(f"{wrong} elements are wrong", where=str(path))


@contextmanager
def refusing_once(place: Place | None) -> Iterator[None]:
    """Lets only rank 0 of a launcher's job print a usage error, because all ranks have the same one."""
    try:
        yield
    except UsageError as error:
        if place is not None and place.rank > 0:
            raise SystemExit(error.exit_code) from None
        raise


def check_job(place: Place, path: Path, target: str, ranks: int | None) -> None:
    """Checks that a launcher's job can run a library.

    Raises:
        UsageError: the library is for CUDA, or the job does not have `ranks` ranks.
    """
    if target == "cuda":
        what = f"on GPUs one process holds all ranks, and {place.launcher} started {place.size}"
        raise UsageError(what, where=str(path), hint="run it once, or with --launcher none")
    if ranks not in (None, place.size):
        raise UsageError(f"--ranks {ranks}, but the job has {place.size}", where=place.launcher)


def _root(text: str) -> int | None:
    if text == "all":
        return None
    if not re.fullmatch(r"\d{1,6}", text):
        raise UsageError(f"-r {text!r} is neither a rank nor 'all'")
    return int(text)


class _Printer:
    """Prints rows as they come. A line has an out-of-place half and then an in-place half."""

    def __init__(self, path: Path, manifest: dict[str, Any], request: BenchRequest, place: Place | None) -> None:
        self.path, self.manifest, self.request = path, manifest, request
        self.started = f"one process each, by {place.launcher}" if place else "one process each"
        if manifest["target"] == "cuda":
            self.started = "on GPUs, all in one process"
        self.launched = place is not None
        self.machines = 1
        self.collective = ""
        self.left: Row | None = None

    def begin(self) -> None:
        """Prints the lines before the ranks start: the sizes, the GPU of each rank, and the head of the first table.

        In a launcher's job the head comes later, because the number of machines is not known yet.
        """
        asked = self.request
        step = f"{asked.step_factor}(factor)" if asked.step_factor > 1 else f"{asked.step_bytes}(bytes)"
        report.line(f"# minBytes {asked.min_bytes} maxBytes {asked.max_bytes} step: {step}")
        report.line("# Using devices")
        for line in devices(self.manifest, asked.ranks):
            report.line(f"#  {line}")
        if not self.launched:
            held = {p["collective"] for a in self.manifest["allocations"] for p in a["programs"]}
            self._head(next(c.value for c in asked.collectives if c.value in held))

    def _head(self, collective: str) -> None:
        self.collective = collective
        ranks = library_ranks(self.manifest, self.request.ranks)
        where = f" on {self.machines} machines" if self.machines > 1 else ""
        report.line(
            f"# {collective}: {self.path}, {ranks} ranks{where}, {self.started}; "
            f"iters {self.request.iters}, warmup {self.request.warmup}, checks {self.request.check}"
        )
        report.text(HEADER)

    def __call__(self, row: Row) -> None:
        if row.collective != self.collective:
            self._head(row.collective)
        if row.in_place:
            report.line("  " + measured_cells(row))
            for half, done in (("out of place", self.left), ("in place", row)):
                if done is not None and done.breakdown:
                    report.text("\n".join([f"# {half}:", *show(done.breakdown)]))
        else:
            self.left = row
            report.line(f"{left_cells(row)}  {measured_cells(row)}", nl=False)
