"""Recomputes everything that a library claims."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from collc.build.readback import LibraryContents, read_library
from collc.errors import IRError, RunError
from collc.ir.nodes import Program
from collc.ir.verify import verify
from collc.packing.document import verify_document
from collc.schedule.model import Schedule
from collc.schedule.trees import schedule_trees

Edge = tuple[int, int]
PartKey = tuple[int, Fraction, Fraction, frozenset[Edge], frozenset[Edge]]


def check_library(path: Path) -> LibraryContents:
    """Checks the plans and their certificates, proves each program, and that each program is its plan's schedule.

    Raises:
        RunError, CertificateError, IRError: for the first claim that does not hold.
    """
    contents = read_library(path)
    verify_document(contents.document)
    allocations = contents.manifest.get("allocations")
    claimed = [a.get("fingerprint") for a in allocations] if isinstance(allocations, list) else []
    if claimed != [contents.document.fingerprint]:
        raise RunError("its manifest and its plan name different graphs", where=str(path))
    if len(contents.programs) != len(contents.document.plans):
        raise RunError(
            f"it holds {len(contents.programs)} programs for {len(contents.document.plans)} plans", where=str(path)
        )
    for plan, program in zip(contents.document.plans, contents.programs, strict=True):
        label = plan.collective.value if plan.root is None else f"{plan.collective.value} from rank {plan.root}"
        try:
            if (program.collective, program.root, program.nranks) != (
                plan.collective,
                plan.root,
                contents.document.graph.nranks,
            ):
                raise IRError("its program is for another collective, root or number of ranks")
            verify(program)
            check_schedule(program, schedule_trees(plan, program.nranks))
        except IRError as error:
            raise IRError(f"{label}: {error}", where=str(path)) from None
    return contents


def check_schedule(program: Program, schedule: Schedule) -> None:
    """Raises IRError unless the program's shares run along exactly the schedule's trees."""
    wanted: set[PartKey] = {
        (part.block, part.lo, part.hi, frozenset(part.reduce), frozenset(part.broadcast)) for part in schedule.parts
    }
    found = parts_of(program)
    if found != wanted:
        block, lo, hi, *_ = min(found ^ wanted, key=lambda key: key[:3])
        raise IRError(f"the tree of block {block} [{lo}, {hi}) differs from the plan's")


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
