"""Programs of the user's own in a library: IR texts, verified like ours, each with the plan that it carries out.

A library proves that its programs follow its plans. Here the plan is read off the program: a share travels along one
tree, whose weight is the part of the block that the share is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from collc.checker.library import Edge, check_follows, edges
from collc.checker.packing import check_packing
from collc.choose.given import GIVEN
from collc.collectives.model import Collective
from collc.errors import CertificateError, IRError, UsageError
from collc.inputs import read_text
from collc.ir.nodes import Program
from collc.ir.printer import parse_program
from collc.ir.routes import verify_routes
from collc.ir.verify import verify
from collc.options import Target
from collc.packing.candidates.plans import with_proof
from collc.packing.model import Hop, Plan, PlanType, Tree
from collc.topology.model import PlanGraph

Key = tuple[Collective, int | None]


def read_programs(given: Sequence[Path | Program]) -> dict[Key, tuple[str, Program]]:
    """Returns programs, given or read from IR texts, by collective and root, each with its name in messages (the file).

    Raises:
        CollcError: a file is no IR.
        OSError: it cannot be opened.
        UsageError: two are for the same collective and root, or one is for a collective without trees.
    """
    found: dict[Key, tuple[str, Program]] = {}
    for number, one in enumerate(given):
        if isinstance(one, Program):
            where, program = f"programs[{number}]", one
        else:
            where, program = str(one), parse_program(read_text(one), str(one))
        key = (program.collective, program.root)
        if not program.collective.uses_trees:
            hint = "the runtime makes the steps of transfers itself"
            raise UsageError(
                f"is of {program.collective.value}, which libraries hold no programs for", where=where, hint=hint
            )
        if key in found:
            raise UsageError(
                f"is for the same collective and root as {found[key][0]}", where=where, hint="leave one of them out"
            )
        found[key] = (where, program)
    return found


def fitted(
    own: Mapping[Key, tuple[str, Program]], graph: PlanGraph, packed: Sequence[Plan], target: Target
) -> tuple[tuple[Plan, ...], dict[int, Program]]:
    """The packed plans, in the place of some those that the programs carry out; and the programs by plan number.

    Raises:
        IRError, CertificateError: a program is wrong, or does not run along trees.
        UsageError: it is for other ranks, a collective that the library lacks, or more than the target has.
    """
    plans, programs = list(packed), {}
    numbers = {(plan.collective, plan.root): number for number, plan in enumerate(packed)}
    for key, (where, program) in own.items():
        if program.nranks != graph.nranks:
            hint = "choose the GPUs with --gpus"
            raise UsageError(f"is for {program.nranks} ranks, the library has {graph.nranks}", where=where, hint=hint)
        if key not in numbers:
            hint = "leave --collective and --root out, or choose these too"
            raise UsageError(f"{key[0].value} of this root is not in the library", where=where, hint=hint)
        if len(program.channels) > target.max_channels:
            most = f"{len(program.channels)} channels, target {target.kind.value} has {target.max_channels}"
            hint = f"collc opt --passes merge_channels={target.max_channels}"
            raise UsageError(f"uses {most}", where=where, hint=hint)
        if program.weights:
            hint = "give the program of one class"
            raise UsageError("is cut into classes of links, and --ir takes programs of one", where=where, hint=hint)
        made = program.replace(slots=target.slots, chunk_bytes=min(program.chunk_bytes, target.chunk_bytes))
        try:
            verify(made)
            if graph.nranks > 1:
                verify_routes(made, graph)
                plans[numbers[key]] = plan = plan_of(made, graph, packed[numbers[key]])
                check_packing(graph, plan, where)
                check_follows(made, plan, graph)
        except (IRError, CertificateError) as error:
            place = where if error.where in (None, where) else f"{where}: {error.where}"
            raise type(error)(error.what, where=place, hint=error.hint) from None
        programs[numbers[key]] = made
    return tuple(plans), programs


def plan_of(program: Program, graph: PlanGraph, packed: Plan) -> Plan:
    """The plan that a program carries out: one tree for each share, at the largest rate that the links bear, with the
    bound and certificate of the packed plan.

    Raises:
        IRError: some share does not run along a tree.
    """
    trees = []
    for number, (share, (up, down)) in enumerate(zip(program.shares, edges(program), strict=True)):
        root = _root(program, share.block, up)
        tree = Tree(
            root, share.hi - share.lo, _outward(root, up, "dst", number)[::-1], _outward(root, down, "src", number)
        )
        trees.append(tree)
    load: dict[int, Fraction] = defaultdict(Fraction)
    for tree in trees:
        for hop in (*tree.reduce, *tree.broadcast):
            for link in hop.links:
                load[link] += tree.weight
    if not load:
        raise IRError("moves nothing between ranks")
    factor = min(graph.links[link].gbps / amount for link, amount in load.items())
    scaled = tuple(replace(tree, weight=tree.weight * factor) for tree in trees)
    rate = sum((tree.weight for tree in scaled), Fraction(0))
    made = Plan(program.collective, program.root, PlanType.TREES, GIVEN, rate, None, False, None, scaled)
    return with_proof(made, packed)


def _root(program: Program, block: int, up: Sequence[Edge]) -> int:
    """Where partial results end; without a phase that reduces, where the data come from."""
    if program.root is not None:
        return program.root
    if program.collective.per_rank:
        return block
    senders = {src for src, _, _ in up}
    ends = [rank for rank in range(program.nranks) if rank not in senders]
    return ends[0] if ends else 0


def _outward(root: int, found: Sequence[Edge], inner: str, share: int) -> tuple[Hop, ...]:
    """Returns the hops of a phase from the root outwards. The caller reverses those hops for a reduce phase.

    Args:
        inner: which end of a hop is nearer to the root.
    """
    outwards = inner == "src"
    by_inner: dict[int, list[Edge]] = defaultdict(list)
    for src, dst, links in found:
        by_inner[src if outwards else dst].append((src, dst, links))
    hops: list[Hop] = []
    seen, ranks = {root}, [root]
    for rank in ranks:
        # The reduce phase is turned round as a whole afterwards.
        for src, dst, links in by_inner[rank] if outwards else by_inner[rank][::-1]:
            other = dst if outwards else src
            if other in seen:
                raise IRError(f"share {share} reaches rank {other} twice: it does not run along a tree")
            seen.add(other)
            ranks.append(other)
            hops.append(Hop(src, dst, links))
    if len(hops) != len(found):
        raise IRError(f"share {share} does not run along a tree from rank {root}")
    return tuple(hops)
