"""`collc doctor`: reports what this machine has and lacks for each target, its network, and the links of a job."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import click

from collc.bench.find import find_library
from collc.bench.launchers import Place, find_place
from collc.bench.links import check_job, checking
from collc.bench.worker import serve_place
from collc.checker.library import read_manifest
from collc.cli import report
from collc.cli.bench import check_job as check_launched
from collc.cli.bench import refusing_once
from collc.cli.report import debug_option, emit_json, json_option, note, table
from collc.cli.sections import SectionedCommand
from collc.doctor import OK, examine, host_ready
from collc.errors import BuildError, RunError, UsageError
from collc.limits import limited
from collc.network.survey import Network, survey


@click.command("doctor", cls=SectionedCommand)
@click.option(
    "--net", is_flag=True, help="Report the network instead: devices, engines, the interface, and why it was chosen."
)
@click.option(
    "--job", is_flag=True, help="Send known data over every pair of ranks of a job instead, and name bad links."
)
@click.argument("library", metavar="[LIB]", required=False, type=click.Path(path_type=Path))
@click.option("--ranks", type=click.IntRange(min=1), help="With --job: ranks to start, one process each [as compiled].")
@click.option(
    "--launcher",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="With --job. auto: under torchrun, mpirun, mpiexec or srun, this process is one of the ranks.",
)
@json_option
@debug_option
def command(net: bool, job: bool, library: Path | None, ranks: int | None, launcher: str, as_json: bool) -> None:
    """Report compilers, drivers and libraries: what is there, what is missing, what to do.

    With --job this runs the code of LIB (the one libcollc-*.so here by default): use it only if you trust it.
    """
    if job:
        if net:
            raise UsageError("--net is not for --job", where="--net", hint="ask for one after the other")
        _check_job(library, ranks, find_place(os.environ) if launcher == "auto" else None, as_json)
        return
    _refuse_without_job(library, ranks)
    if net:
        _report_network(survey(os.environ), as_json)
        return
    findings = examine()
    if as_json:
        emit_json({"findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        rows = [[f.name, f.state, f.needed_for, f.detail] for f in findings]
        report.text(table(["what", "state", "needed for", "found"], rows, left=4))
        for finding in findings:
            if finding.state != OK and finding.hint:
                report.line(f"{finding.name}: {finding.hint}")
    if not host_ready(findings):
        lacking = ", ".join(f.name for f in findings if "host" in f.needed_for and f.state != OK)
        raise BuildError(f"the host target cannot be built or run here: {lacking}", hint="see `collc doctor`")


def _refuse_without_job(library: Path | None, ranks: int | None) -> None:
    given = {"LIB": library, "--ranks": ranks}
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name} is for --job", where=str(value), hint="`collc doctor --job LIB` checks a job's links"
            )


def _check_job(library: Path | None, ranks: int | None, place: Place | None, as_json: bool) -> None:
    path = find_library(library)
    with limited(path):
        target = read_manifest(path)["target"]
    with refusing_once(place):
        if place is not None:
            check_launched(place, path, target, ranks)
    if place is not None and place.rank > 0:
        with checking():
            if not serve_place(path, place):
                raise SystemExit(RunError.exit_code)  # rank 0 says why
        return
    pairs = check_job(path, ranks, place)
    slow = [pair for pair in pairs if pair.slow]
    if as_json:
        emit_json({"pairs": [dataclasses.asdict(pair) for pair in pairs]})
        return
    rows = [
        [
            f"{pair.source} -> {pair.target}",
            pair.link,
            f"{pair.gbps:.3g}" if pair.gbps else "-",
            f"{pair.topology_gbps:g}" if pair.topology_gbps else "-",
            pair.verdict,
        ]
        for pair in pairs
    ]
    report.text(table(["ranks", "over", "GB/s", "topology", "found"], rows, left=2))
    checked = [pair for pair in pairs if pair.gbps is not None]
    report.line(f"{len(checked)} pairs of ranks carry data correctly{f', {len(slow)} of them slowly' if slow else ''}")


def _report_network(found: Network, as_json: bool) -> None:
    if as_json:
        emit_json({"network": dataclasses.asdict(found)})
    else:
        _print(found)
    if found.problem:
        raise RunError(f"this machine cannot be joined with others: {found.problem}")


def _print(found: Network) -> None:
    report.line(f"{found.host}, one machine by its {found.machine}")
    rows = [
        [
            d.name,
            d.state,
            f"{d.gbits:g}" if d.gbits else "-",
            d.driver or "virtual",
            d.rdma or "-",
            ", ".join(d.addresses),
        ]
        for d in found.devices
    ]
    report.text(table(["interface", "state", "Gbit/s", "driver", "RDMA", "addresses"], rows, left=6))
    for port in found.rdma:
        report.line(f"{port.device} port {port.port}: {port.layer}, {port.state}, {port.rate}")
    for engine in found.engines:
        report.line(f"engine {engine.name}: {'' if engine.usable else 'no, '}{engine.detail}")
    if found.interface:
        report.line(f"machines would meet on {found.interface} ({found.address}): {found.why}")
    if found.ports:
        first, last = found.ports
        report.line(
            f"a firewall must let TCP between the machines pass: the system chooses from ports {first} to {last}"
        )
    for one in found.notes:
        note(one)
