"""`collc doctor`: what this machine has and lacks for each target."""

from __future__ import annotations

import dataclasses

import click

from collc.cli import report
from collc.cli.report import debug_option, emit_json, json_option, table
from collc.doctor import OK, examine, host_ready
from collc.errors import BuildError


@click.command("doctor")
@json_option
@debug_option
def command(as_json: bool) -> None:
    """Report compilers, drivers and libraries: what is there, what is missing, what to do."""
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
