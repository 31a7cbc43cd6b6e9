"""`collc verify`: recomputes everything that a file claims."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path

import click

from collc.build.relink import Evidence, check_code
from collc.checker.library import check_library
from collc.cli import report
from collc.cli.report import debug_option, emit_json, json_option
from collc.cli.sections import SectionedCommand
from collc.errors import CertificateError, CollcError, UsageError
from collc.inputs import open_input, read_text
from collc.ir.printer import parse_program
from collc.ir.verify import verify
from collc.limits import limited
from collc.packing.document import PlanFile, parse_plan, verify_document

_UNLIMITED = "if you trust its source, use --no-limits"


@click.command("verify", cls=SectionedCommand)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--no-limits", is_flag=True, help="Verify a library or IR text without limits on time and memory.")
@json_option
@debug_option
def command(file: Path, no_limits: bool, as_json: bool) -> None:
    """Check FILE: a plan of `collc plan --json`, an IR text, or a library. Exit code 1 if a claim does not hold.

    A library's code is linked again and compared if this is the collc, and here are the compilers, that made it.
    Otherwise the result names the parts that were only compared with the library's own digest.
    """
    kind, lines, code = _check(file, nullcontext() if no_limits else limited(file, hint=_UNLIMITED))
    proved = all(one.proved for one in code)
    if as_json:
        value = {"file": str(file), "kind": kind, "verified": proved, "claims": lines}
        emit_json(value | ({"code": [asdict(one) for one in code]} if code else {}))
        return
    for line in (*lines, *map(str, code)):
        report.line(line)
    rest = " and ".join(one.part for one in code if not one.proved)
    all_proved = f"every claim of this {kind} holds"
    report.line(f"{file}: {f'its plans and programs are proved, its {rest} is not proved' if rest else all_proved}")


def _check(file: Path, limits: AbstractContextManager[None]) -> tuple[str, list[str], list[Evidence]]:
    """Returns the kind of a file, a line per claim that holds, and for a library the evidence for its code.

    Raises:
        CertificateError: a claim of a plan does not hold.
        UsageError: the file is not a plan, an IR text or a library.
    """
    with open_input(file) as stream:
        magic = stream.read(4096)
    if magic.startswith(b"\x7fELF"):
        with limits:
            library = check_library(file)
        plans = [line for document in library.documents for line in _plan_lines(document)]
        sets = len(library.tables.sets)
        told = f"{sets} set{'s' if sets > 1 else ''} of GPUs proved"
        status = report.progress("collc verify")
        code = check_code(file, library, status)
        status("")
        return "library", [*plans, f"{library.programs} programs proved", told], code
    text = read_text(file)
    start = text.lstrip()[:1]
    if start == "{":
        document = parse_plan(text, str(file))
        try:
            verify_document(document)
        except CollcError as error:
            where = f"{file}: {error.where}" if error.where else str(file)
            raise CertificateError(error.what, where=where, hint=error.hint) from None
        return "plan", _plan_lines(document), []
    if any(line.strip().startswith("collc-ir/") for line in text.split("\n", 100)[:100]):
        with limits:
            program = parse_program(text, str(file))
            verify(program)
        name = program.collective.value if program.root is None else f"{program.collective.value} from {program.root}"
        line = f"{name}: {program.nranks} ranks, {len(program.channels)} channels, {program.slots} slots"
        return "program", [line], []
    raise UsageError(
        "is not a plan, IR text or library",
        where=str(file),
        hint="give what `collc plan --json` or `collc compile` wrote",
    )


def _plan_lines(document: PlanFile) -> list[str]:
    lines = [f"graph {document.fingerprint}: {document.graph.nranks} GPUs, {len(document.graph.links)} links"]
    for plan in document.plans:
        name = plan.collective.with_root(plan.root)
        if plan.kind != "trees":
            name += f" by {plan.kind}"
        proof = "optimal" if plan.optimal else f"at most {plan.bound}"
        lines.append(f"{name}: {plan.rate} GB/s, {proof}")
    return lines
