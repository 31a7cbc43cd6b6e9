"""Recomputes everything that a library claims."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from collc.build.readback import LibraryContents, read_library
from collc.codegen.context import When
from collc.errors import IRError, RunError
from collc.ir.nodes import Program
from collc.ir.verify import verify
from collc.packing.candidates import kind_of, spread
from collc.packing.document import PlanFile, verify_document
from collc.packing.model import Plan
from collc.schedule.model import Schedule
from collc.schedule.trees import schedule_trees

Edge = tuple[int, int]
# More trees than any plan is cut into.
_MOST_TREES = 1 << 16
PartKey = tuple[int, Fraction, Fraction, frozenset[Edge], frozenset[Edge]]


def check_library(path: Path) -> LibraryContents:
    """Checks the plans and their certificates, proves each program, and that each program is its plan's schedule.

    Raises:
        RunError, CertificateError, IRError: for the first claim that does not hold.
    """
    contents = read_library(path)
    allocations = contents.manifest.get("allocations")
    claimed = [a.get("fingerprint") for a in allocations] if isinstance(allocations, list) else []
    if claimed != [document.fingerprint for document in contents.documents]:
        raise RunError("its manifest and its plans name different graphs", where=str(path))
    if len(contents.programs) != len(contents.documents):
        raise RunError(
            f"it holds programs for {len(contents.programs)} allocations and plans for {len(contents.documents)}",
            where=str(path),
        )
    held = zip(contents.documents, contents.programs, contents.when, allocations or (), strict=True)
    for document, programs, when, claims in held:
        check_allocation(document, programs, when, claims, path)
    for one in contents.gpu_sets:
        nranks = contents.documents[one.allocation].graph.nranks if one.allocation < len(contents.documents) else 0
        if sorted(one.ranks) != list(range(nranks)):
            raise RunError(f"its GPU set {one.gpus} does not give every rank of its plan one GPU", where=str(path))
    return contents


def check_allocation(
    document: PlanFile, programs: Sequence[Program], when: Sequence[When], claims: dict[str, Any], path: Path
) -> None:
    """Checks one allocation: its plans, its programs, what the manifest says of each, and that they belong together."""
    verify_document(document)
    rows = claims.get("programs")
    if not isinstance(rows, list) or len(rows) != len(programs):
        raise RunError(f"its manifest does not list its {len(programs)} programs", where=str(path))
    proved: set[tuple[int, object, object]] = set()
    for program, rule, row in zip(programs, when, rows, strict=True):
        plan = _plan_of(document, row, path)
        label = plan.collective.value if plan.root is None else f"{plan.collective.value} from rank {plan.root}"
        try:
            wanted = (plan.collective, plan.root, document.graph.nranks)
            if (program.collective, program.root, program.nranks) != wanted:
                raise IRError("its program is for another collective, root or number of ranks")
            _check_row(plan, program, rule, row)
            # Programs that differ in chunks alone have the same steps and were proved with the first of them.
            same = (id(program.channels), row["plan_number"], row["spread"])
            if same not in proved:
                verify(program)
                if row.get("everywhere") is True:
                    check_everywhere(program)
                else:
                    check_schedule(program, schedule_trees(spread(plan, row["spread"]), program.nranks))
                proved.add(same)
            if not 0 < program.chunk_bytes <= claims.get("slot_bytes", 0):
                raise IRError(f"a chunk of {program.chunk_bytes} bytes does not fit in a slot")
        except IRError as error:
            raise IRError(f"{label}: {error}", where=str(path)) from None
    _check_order(programs, when, path)


def _plan_of(document: PlanFile, row: Any, path: Path) -> Plan:
    number = row.get("plan_number") if isinstance(row, dict) else None
    if not isinstance(number, int) or not 0 <= number < len(document.plans):
        raise RunError("its manifest gives a program a plan that it does not hold", where=str(path))
    if not isinstance(row.get("spread"), int) or not 0 <= row["spread"] <= _MOST_TREES:
        raise RunError("its manifest does not tell into how many trees a plan was cut", where=str(path))
    return document.plans[number]


def _check_row(plan: Plan, program: Program, rule: When, row: dict[str, Any]) -> None:
    """The manifest tells of each program what the tables and the plan say."""
    truth = {
        "collective": plan.collective.value,
        "root": plan.root,
        "rate_gbps": None if plan.rate is None else str(plan.rate),
        "bound_gbps": None if plan.bound is None else str(plan.bound),
        "optimal": plan.optimal,
        "plan": kind_of(plan),
        "channels": len(program.channels),
        "proto": rule.protocol,
        "chunk_bytes": program.chunk_bytes,
        "min_bytes": rule.min_bytes,
    }
    for name, value in truth.items():
        if row.get(name) != value:
            raise IRError(f"the manifest says {name} {row.get(name)!r}, the library holds {value!r}")


def _check_order(programs: Sequence[Program], when: Sequence[When], path: Path) -> None:
    """Every collective and root has a program for every size: the first from 0 bytes on, then ever larger ones."""
    last: dict[tuple[str, int | None], int | None] = {}
    for program, rule in zip(programs, when, strict=True):
        key = (program.collective.value, program.root)
        if key not in last and rule.min_bytes != 0:
            raise RunError(f"its first program of {key[0]} is not for all sizes", where=str(path))
        before = last.get(key)
        if key in last and rule.min_bytes is not None and (before is None or rule.min_bytes <= before):
            raise RunError(f"its programs of {key[0]} are not in the order of their sizes", where=str(path))
        last[key] = rule.min_bytes


def check_schedule(program: Program, schedule: Schedule) -> None:
    """Raises IRError unless the program's shares run along exactly the schedule's trees."""
    wanted: set[PartKey] = {
        (part.block, part.lo, part.hi, frozenset(part.reduce), frozenset(part.broadcast)) for part in schedule.parts
    }
    found = parts_of(program)
    if found != wanted:
        block, lo, hi, *_ = min(found ^ wanted, key=lambda key: key[:3])
        raise IRError(f"the tree of block {block} [{lo}, {hi}) differs from the plan's")


def check_everywhere(program: Program) -> None:
    """Raises IRError unless every rank hands its whole input to every other, and nothing else moves."""
    ranks = range(program.nranks)
    pairs = frozenset((a, b) for a in ranks for b in ranks if a != b)
    if parts_of(program) != {(0, Fraction(0), Fraction(1), pairs, frozenset())}:
        raise IRError("its ranks do not hand each other their whole inputs")


def parts_of(program: Program) -> set[PartKey]:
    """For each share its place and the edges along which partial and finished results travel."""
    reduce: dict[int, set[Edge]] = {s: set() for s in range(len(program.shares))}
    broadcast: dict[int, set[Edge]] = {s: set() for s in range(len(program.shares))}
    for channel in program.channels:
        for rank, steps in enumerate(channel.steps):
            for step in steps:
                finished = step.output or not step.input
                edges = {(rank, dst) for f in step.send for dst in program.fifos[f].dsts}
                (broadcast if finished else reduce)[step.share] |= edges
    return {
        (share.block, share.lo, share.hi, frozenset(reduce[s]), frozenset(broadcast[s]))
        for s, share in enumerate(program.shares)
    }
