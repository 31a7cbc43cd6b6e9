"""`collc status`: shows the ranks that wait and their peers, in running jobs and in the records of failed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from collc.cli import report
from collc.cli.report import debug_option, emit_json, json_option, ranges, table
from collc.cli.sections import SectionedCommand
from collc.errors import UsageError
from collc.outputs import check_output, written_aside
from collc.status.culprits import Finding, culprits
from collc.status.flight import join
from collc.status.jobs import communicators
from collc.status.metrics import openmetrics
from collc.status.model import COMPLETED, STARTED, Communicator, Rank
from collc.status.serve import serve
from collc.status.trace import chrome_trace

_PATIENCE = 1.0  # seconds that ranks of a running job may be late


@click.command("status", cls=SectionedCommand)
@click.argument("what", nargs=-1, metavar="[PID|all]...")
@click.option("--join", "files", is_flag=True, help="Read the files that the ranks of a job have left in COLLC_DUMP.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --join: write the calls as a Chrome trace, for Perfetto.",
)
@click.option("--calls", is_flag=True, help="List the last calls of every rank too.")
@click.option("--openmetrics", "metrics", is_flag=True, help="Print counters as OpenMetrics text, for Prometheus.")
@click.option(
    "--listen",
    type=click.Path(path_type=Path),
    metavar="SOCKET",
    help="With --openmetrics: answer HTTP on this local socket instead, until Ctrl-C.",
)
@json_option
@debug_option
def command(
    what: tuple[str, ...],
    files: bool,
    trace: Path | None,
    calls: bool,
    metrics: bool,
    listen: Path | None,
    as_json: bool,
) -> None:
    """Show the communicators of running jobs: ranks, calls, the ranks that wait, and the ranks that delay the others.

    Reads the memory of the processes PID (default: all of this user) and disturbs nothing. With --join, WHAT are files.
    """
    if metrics and (files or calls or as_json):
        other = "--join" if files else "--calls" if calls else "--json"
        raise UsageError(f"--openmetrics is not for {other}", where="--openmetrics", hint=f"leave {other} out")
    if listen is not None:
        if not metrics:
            raise UsageError("--listen is only for --openmetrics", where="--listen", hint="add --openmetrics")
        _serve(listen, what)
        return
    if trace is not None:
        if not files:
            raise UsageError(
                "--trace is only for --join", where="--trace", hint="COLLC_DUMP_SIGNAL makes files to join"
            )
        check_output(trace)
    if files:
        if not what:
            raise UsageError("--join needs files", hint="collc-*-rank*.json of the folder COLLC_DUMP")
        found = join([Path(one) for one in what])
        problems: list[str] = []
    else:
        found, problems = _running(what)
    if trace is not None:
        with written_aside(trace, 0o644) as aside:
            aside.write_text(json.dumps(chrome_trace(found)) + "\n", encoding="utf-8")
        report.note(f"wrote {trace}")
    # In a failed job every late rank counts.
    blamed = [culprits(one, 0.0 if files and one.failure else _PATIENCE) for one in found]
    if as_json:
        rows = [_json(one, findings) for one, findings in zip(found, blamed, strict=True)]
        emit_json({"communicators": rows, "problems": problems})
        return
    if metrics:
        report.text(openmetrics(found, blamed), nl=False)
    else:
        _print_all(found, blamed, calls)
    for problem in problems:
        report.note(problem)


def _serve(path: Path, what: tuple[str, ...]) -> None:
    """Answers on a socket until Ctrl-C. Reports each problem once, until it ends and comes back."""
    told: set[str] = set()

    def text() -> str:
        found, problems = _running(what)
        for problem in problems:
            if problem not in told:
                report.note(problem)
        told.intersection_update(problems)
        told.update(problems)
        return openmetrics(found, [culprits(one, _PATIENCE) for one in found])

    _running(what)  # refuses a wrong process before it listens
    serve(path, text, lambda: report.note(f"listening on {path}"))


def _running(what: tuple[str, ...]) -> tuple[list[Communicator], list[str]]:
    if not what or what == ("all",):
        return communicators()
    found: dict[str, Communicator] = {}
    problems: list[str] = []
    for word in what:
        if not (word.isascii() and word.isdigit() and len(word) < 10):
            raise UsageError(f"{word}: not the number of a process", hint="give a PID, or `all`")
        own, lines = communicators(int(word))
        found |= {one.name: one for one in own}
        problems += lines
    return list(found.values()), problems


def _print_all(found: list[Communicator], blamed: list[list[Finding]], calls: bool) -> None:
    for number, (one, findings) in enumerate(zip(found, blamed, strict=True)):
        if number:
            report.line("")
        _print(one, findings, calls)
    if not found:
        report.line("no communicator of collc here")


def _print(one: Communicator, findings: list[Finding], calls: bool) -> None:
    plan = f", graph {one.plan}" if one.plan else ""
    report.line(f"communicator {one.name}: {one.nranks} ranks, {one.library}{plan}")
    if one.failure:
        report.line(f"broken by {one.failure}")
    rows = [_row(rank) for rank in one.ranks]
    header = ["rank", "GPU", "process", "state", "calls", "in", "since", "waits for", "reads by"]
    report.text(table(header, rows, left=len(header)))
    for finding in findings:
        report.line(f"rank {finding.rank} {finding.what}")
    for rank in one.ranks if calls else ():
        for call in rank.calls:
            name = "transfer" if call.transfer else "call"
            ago = f", {call.age:.6f} s ago" if call.age is not None else ""
            report.line(f"rank {rank.rank} {name} {call.number}: {call.text}, {call.state}{ago}")


def _row(rank: Rank) -> list[str]:
    call = rank.current
    host = f" on {rank.host}" if rank.host else ""
    return [
        str(rank.rank),
        rank.gpu or "-",
        f"{rank.process}{host}" if rank.process is not None else "-",
        rank.state,
        str(rank.newest),
        _inside(rank),
        f"{call.age:.1f} s" if call is not None and call.age is not None else "-",
        ", ".join(map(str, rank.waits_for)) or "-",
        _ways(rank),
    ]


def _inside(rank: Rank) -> str:
    """Returns the call that a rank is in; if the ends of its calls are unknown, its last call on a stream."""
    call, last = rank.current, rank.last
    if call is not None:
        return call.text
    return f"({last.text})" if last is not None and last.state not in (STARTED, COMPLETED) else "-"


def _ways(rank: Rank) -> str:
    """Returns how a rank reads its peers, such as ``addresses``, or ``slots: 1, 2; wire: 4-7`` if they differ."""
    by_way: dict[str, list[int]] = {}
    for peer, way in sorted(rank.ways.items()):
        by_way.setdefault(way, []).append(peer)
    if len(by_way) < 2:
        return next(iter(by_way), "-")
    return "; ".join(f"{way}: {', '.join(ranges(peers))}" for way, peers in by_way.items())


def _json(one: Communicator, findings: list[Finding]) -> dict[str, Any]:
    return {
        "communicator": one.name,
        "nranks": one.nranks,
        "library": one.library,
        "plan": one.plan or None,
        "failure": one.failure or None,
        "ranks": [_rank_json(rank) for rank in one.ranks],
        "culprits": [{"rank": finding.rank, "what": finding.what} for finding in findings],
    }


def _rank_json(rank: Rank) -> dict[str, Any]:
    call = rank.current
    return {
        "rank": rank.rank,
        "gpu": rank.gpu or None,
        "process": rank.process,
        "host": rank.host or None,
        "state": rank.state,
        "newest": rank.newest,
        "in": None if call is None else {"call": call.text, "since_s": call.age},
        "waits_for": list(rank.waits_for),
        "ways": {str(peer): way for peer, way in rank.ways.items()},
        "error": rank.error or None,
        "calls": [
            {
                "number": one.number,
                "is_p2p": one.transfer,
                "call": one.text,
                "state": one.state,
                "age_s": one.age,
            }
            for one in rank.calls
        ],
    }
