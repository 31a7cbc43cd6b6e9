"""Recomputes everything that a library claims."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from collc.build.readback import LibraryContents, read_library
from collc.errors import IRError, RunError
from collc.ir.nodes import Program
from collc.ir.verify import verify
from collc.packing.document import PlanFile, verify_document
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
    allocations = contents.manifest.get("allocations")
    claimed = [a.get("fingerprint") for a in allocations] if isinstance(allocations, list) else []
    if claimed != [document.fingerprint for document in contents.documents]:
        raise RunError("its manifest and its plans name different graphs", where=str(path))
    if len(contents.programs) != len(contents.documents):
        raise RunError(
            f"it holds programs for {len(contents.programs)} allocations and plans for {len(contents.documents)}",
            where=str(path),
        )
    for document, programs in zip(contents.documents, contents.programs, strict=True):
        check_allocation(document, programs, path)
    for one in contents.gpu_sets:
        nranks = contents.documents[one.allocation].graph.nranks if one.allocation < len(contents.documents) else 0
        if sorted(one.ranks) != list(range(nranks)):
            raise RunError(f"its GPU set {one.gpus} does not give every rank of its plan one GPU", where=str(path))
    return contents


def check_allocation(document: PlanFile, programs: Sequence[Program], path: Path) -> None:
    """Checks one allocation: its plans, its programs, and that they belong together."""
    verify_document(document)
    if len(programs) != len(document.plans):
        raise RunError(f"it holds {len(programs)} programs for {len(document.plans)} plans", where=str(path))
    for plan, program in zip(document.plans, programs, strict=True):
        label = plan.collective.value if plan.root is None else f"{plan.collective.value} from rank {plan.root}"
        try:
            wanted = (plan.collective, plan.root, document.graph.nranks)
            if (program.collective, program.root, program.nranks) != wanted:
                raise IRError("its program is for another collective, root or number of ranks")
            verify(program)
            check_schedule(program, schedule_trees(plan, program.nranks))
        except IRError as error:
            raise IRError(f"{label}: {error}", where=str(path)) from None


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
