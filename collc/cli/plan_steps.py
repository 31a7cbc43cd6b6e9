"""`collc plan --steps`: prints the primitives that each rank runs, in order, like descriptions of NCCL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collc.cli import report
from collc.errors import PackingError, UsageError
from collc.ir.nodes import Program, Step, Through
from collc.options import CUDA
from collc.packing import Plan
from collc.packing.candidates.plans import KINDS, candidate, channels_of
from collc.packing.solve import ORBITS_FROM
from collc.pipeline import Recorder, lower_in_switch, lower_spread
from collc.topology.model import PlanGraph

FORMAT = "collc-steps/1"
TREES = "trees"
IN_SWITCH = "in-switch"
_SHOWN_RANKS = 8


def parse_kind(text: str) -> str:
    """Returns the kind of plan that --steps names.

    Raises:
        UsageError: there is no such kind.
    """
    if text not in (TREES, IN_SWITCH, *KINDS):
        kinds = ", ".join([TREES, *KINDS, IN_SWITCH])
        raise UsageError(f"{text[:40]!r} is no kind of plan", where="--steps", hint=f"after TOPO, one of {kinds}")
    return text


def lowered(graph: PlanGraph, packed: Sequence[Plan], kind: str) -> list[Program]:
    """Returns verified programs of a kind of plan, as CUDA libraries run them.

    In-switch programs are only in libraries with `--in-switch`.

    Args:
        packed: the plans whose collectives and roots the programs have.
        kind: the kind of plan (`parse_kind`).

    Raises:
        UsageError: none of the plans has steps, or the graph is too large to write them out.
        PackingError: none of the collectives has a plan of this kind on the graph.
    """
    if graph.nranks > ORBITS_FROM:
        raise UsageError(f"--steps writes out plans for at most {ORBITS_FROM} GPUs", hint="choose some with --gpus")
    wanted = [plan for plan in packed if plan.collective.uses_trees]
    if not wanted:
        what = packed[0].collective.value
        raise UsageError(f"{what} has no steps: each rank sends its parts to the others", where="--steps")
    made, refused = [], None
    for plan in wanted:
        try:
            if kind == IN_SWITCH:
                made.append(lower_in_switch(plan, graph, CUDA, 1, Recorder()))
                continue
            chosen = plan if kind == TREES else candidate(graph, plan.collective, plan.root, kind)
        except PackingError as error:
            refused = error
            continue
        made.append(lower_spread(chosen, 0 if kind == TREES else channels_of(chosen), graph, CUDA)[1])
    if refused is not None and not made:
        raise refused
    return made


def steps_json(kind: str, made: Sequence[Program]) -> dict[str, Any]:
    """Returns a document of the format collc-steps/1 (docs/formats.md)."""
    return {
        "format": FORMAT,
        "kind": kind,
        "programs": [
            {
                "collective": program.collective.value,
                "root": program.root,
                "channels": [
                    [[_step_json(program, step) for step in steps] for steps in channel.steps]
                    for channel in program.channels
                ],
            }
            for program in made
        ],
    }


def _step_json(program: Program, step: Step) -> dict[str, Any]:
    share = program.shares[step.share]
    does = [
        through.value
        for through, wanted in (
            (Through.SUM, program.sums_in_switch(step)), (Through.COPY, program.copies_in_switch(step)),
        )
        if wanted
    ]  # fmt: skip
    return {
        "primitive": step.name,
        "from": [program.fifos[fifo].src for fifo in step.recv],
        "to": [rank for fifo in step.send for rank in program.fifos[fifo].dsts],
        "block": share.block,
        "lo": str(share.lo),
        "hi": str(share.hi),
        "lag": step.lag,
        **({"switch": does} if does else {}),
    }


def steps_text(kind: str, made: Sequence[Program]) -> str:
    """Returns a table per channel and sequence of primitives, with the peers of each rank that runs it."""
    parts = []
    for program in made:
        count = len(program.channels)
        title = f"{program.collective.with_root(program.root)}, {kind}: {count} channel{'s' if count > 1 else ''}"
        parts.append(f"{title}. A rank's steps for a chunk of each share, in order; 2 > 3: from rank 2, to rank 3.")
        parts += [_channel_text(program, number) for number in range(count)]
    return "\n\n".join(parts)


def _channel_text(program: Program, number: int) -> str:
    # The order of a rank's steps for one chunk of each share: steps with more lag reach the chunk later.
    in_time = [sorted(steps, key=lambda step: step.lag) for steps in program.channels[number].steps]
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, steps in enumerate(in_time):
        if steps:
            alike.setdefault(tuple(step.name for step in steps), []).append(rank)
    tables = []
    for names, ranks in alike.items():
        shown, hidden = ranks[:_SHOWN_RANKS], len(ranks[_SHOWN_RANKS:])
        peers = [[_peers(program, in_time[rank][place]) for rank in shown] for place in range(len(names))]
        rows = [[str(place), name, *peers[place]] for place, name in enumerate(names)]
        text = report.table(["Step", "Primitive", *(f"rank {rank}" for rank in shown)], rows, left=2)
        tables.append(text + (f"\n(and {hidden} more ranks with these primitives: --json)" if hidden else ""))
    return f"channel {number}\n" + "\n\n".join(tables)


def _peers(program: Program, step: Step) -> str:
    document = _step_json(program, step)
    source, target = (",".join(map(str, document[side])) for side in ("from", "to"))
    return f"{source} > {target}".strip() if target else f"{source} >" if source else "-"
