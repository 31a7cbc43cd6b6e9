"""`collc doctor`: what this machine has and lacks for each target, and how it would meet other machines."""

from __future__ import annotations

import dataclasses
import os

import click

from collc.cli import report
from collc.cli.report import debug_option, emit_json, json_option, note, table
from collc.doctor import OK, examine, host_ready
from collc.errors import BuildError, RunError
from collc.network.survey import Network, survey


@click.command("doctor")
@click.option(
    "--net", is_flag=True, help="Report the network instead: devices, engines, the interface and why that one."
)
@json_option
@debug_option
def command(net: bool, as_json: bool) -> None:
    """Report compilers, drivers and libraries: what is there, what is missing, what to do."""
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
