"""Schedule -> IR: one channel per part and one FIFO per edge, without any overlap of phases.

Before, one part of a broadcast: ``root 0, edges 0->1, 0->2``. After::

    channel 0
      rank 0
        send share 0 lag 0 send 0,1
        copy share 0 lag 0
      rank 1
        recv share 0 lag 0 recv 0
      ...

Within a rank the reduction step precedes the broadcast step, and both process the same chunk. So a rank reduces chunk
k + 1 only after it has broadcast chunk k. The passes of `collc.lowering` pipeline and merge these loops.
"""

from __future__ import annotations

from collections import defaultdict

from collc.ir.nodes import Channel, Fifo, Program, Share, Step, Through
from collc.ir.routes import server_numbers, slowest
from collc.schedule.model import Part, Schedule
from collc.topology.model import PlanGraph

# A hop of a part: "up" in the reduction or "down" in the broadcast, source, destination.
Edge = tuple[str, int, int]


def build(schedule: Schedule, *, chunk_bytes: int, slots: int = 1, graph: PlanGraph | None = None) -> Program:
    """Returns the program of a schedule.

    Args:
        chunk_bytes: the size of a slot, in bytes.
        slots: the slots of each FIFO.
        graph: the graph of the plan. Without it, FIFOs have no routes and all ranks are on one server.
    """
    shares: list[Share] = []
    fifos: list[Fifo] = []
    channels: list[Channel] = []
    next_index: dict[tuple[object, ...], int] = defaultdict(int)
    for part in schedule.parts:
        share = len(shares)
        shares.append(Share(part.block, part.lo, part.hi))
        fifo_ids: dict[Edge, int] = {}
        edges: list[Edge] = [("up", *edge) for edge in part.reduce] + [("down", *edge) for edge in part.broadcast]
        for number, (phase, src, dst) in enumerate(edges):
            fifo_ids[phase, src, dst] = len(fifos)
            routes = () if graph is None else (part.routes[number],)
            if part.in_switch:
                through = Through.SUM if phase == "up" else Through.COPY
                index = next_index[part.root, through]
            else:
                through, index = None, next_index[src, dst, routes]
                next_index[src, dst, routes] += 1
            fifos.append(Fifo(src, (dst,), share, index, routes, slowest(graph, routes), through))
        if part.in_switch:
            next_index[part.root, Through.SUM] += 1
            next_index[part.root, Through.COPY] += 1
            channels.append(Channel(_switch_steps(schedule, part, share, fifo_ids)))
        else:
            channels.append(Channel(_steps(schedule, part, share, fifo_ids)))
    return Program(
        collective=schedule.collective,
        root=schedule.root,
        nranks=schedule.nranks,
        slots=slots,
        chunk_bytes=chunk_bytes,
        shares=tuple(shares),
        fifos=tuple(fifos),
        channels=tuple(channels),
        servers=() if graph is None else server_numbers(graph),
    )


def _steps(schedule: Schedule, part: Part, share: int, fifo_ids: dict[Edge, int]) -> tuple[tuple[Step, ...], ...]:
    """Returns the steps of each rank for a part that runs along a tree."""
    up_in: dict[int, list[int]] = defaultdict(list)
    up_out: dict[int, list[int]] = defaultdict(list)
    down_in: dict[int, list[int]] = defaultdict(list)
    down_out: dict[int, list[int]] = defaultdict(list)
    for (phase, src, dst), fifo in fifo_ids.items():
        receives, sends = (up_in, up_out) if phase == "up" else (down_in, down_out)
        receives[dst].append(fifo)
        sends[src].append(fifo)
    ranks: list[tuple[Step, ...]] = []
    for rank in range(schedule.nranks):
        steps: list[Step] = []
        down = tuple(down_out[rank])
        has_output = not schedule.collective.traits.output.at_root or rank == schedule.root
        if rank == part.root:
            if part.reduce:
                steps.append(Step(share, 0, True, tuple(up_in[rank]), True, down))
            else:
                steps += [Step(share, 0, True, (), False, down)] if down else []
                steps += [Step(share, 0, True, (), True, ())] if has_output else []
        else:
            if up_out[rank]:
                steps.append(Step(share, 0, True, tuple(up_in[rank]), False, tuple(up_out[rank])))
            if down_in[rank]:
                steps.append(Step(share, 0, False, tuple(down_in[rank]), True, down))
        ranks.append(tuple(steps))
    return tuple(ranks)


def _switch_steps(
    schedule: Schedule, part: Part, share: int, fifo_ids: dict[Edge, int]
) -> tuple[tuple[Step, ...], ...]:
    """Returns the steps of each rank for a part that a switch reduces or copies.

    To reduce, every rank writes its input into a slot, and the head, the root of the part, reads the sum from the
    switch. To broadcast, the head stores this sum, or its input if there is no reduction, through the switch, and every
    rank, including the head, reads the result from a slot in its own memory.
    """
    ranks: list[tuple[Step, ...]] = []
    head = part.root
    up = tuple(fifo_ids["up", src, dst] for src, dst in part.reduce)
    down = tuple(fifo_ids["down", src, dst] for src, dst in part.broadcast)
    for rank in range(schedule.nranks):
        steps: list[Step] = []
        if up:
            steps.append(Step(share, 0, True, (), False, (fifo_ids["up", rank, head],)))
        if rank == head:
            steps.append(Step(share, 0, not up, up, not down, down))
        if down:
            steps.append(Step(share, 0, False, (fifo_ids["down", head, rank],), True, ()))
        ranks.append(tuple(steps))
    return tuple(ranks)
