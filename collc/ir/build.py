"""Schedule -> IR, plainly: one channel per part, one FIFO per edge, no overlap yet.

Before (a part of a broadcast): ``root 0, edges 0->1, 0->2``. After::

    channel 0
      rank 0
        send share 0 lag 0 send 0,1
        copy share 0 lag 0
      rank 1
        recv share 0 lag 0 recv 0
      ...

Within a rank the reduction step precedes the broadcast step; both work on the same chunk, so a chunk travels up and
down before the next one starts. The passes of `collc.lowering` make it fast.
"""

from __future__ import annotations

from collections import defaultdict

from collc.ir.nodes import Channel, Fifo, Program, Share, Step, Through
from collc.ir.routes import server_numbers, slowest
from collc.schedule.model import Part, Schedule
from collc.topology.model import PlanGraph


def build(schedule: Schedule, *, chunk_bytes: int, slots: int = 1, graph: PlanGraph | None = None) -> Program:
    """One program for a schedule; `slots` of `chunk_bytes` for every FIFO.

    Args:
        graph: of the plan; without one FIFOs have no routes and all ranks are on one server.
    """
    shares: list[Share] = []
    fifos: list[Fifo] = []
    channels: list[Channel] = []
    used: dict[tuple[object, ...], int] = defaultdict(int)
    for part in schedule.parts:
        share = len(shares)
        shares.append(Share(part.block, part.lo, part.hi))
        queue: dict[tuple[str, int, int], int] = {}
        moves = [("up", *edge) for edge in part.reduce] + [("down", *edge) for edge in part.broadcast]
        for number, (phase, src, dst) in enumerate(moves):
            queue[phase, src, dst] = len(fifos)
            routes = () if graph is None else (part.routes[number],)
            if part.in_switch:
                through = Through.SUM if phase == "up" else Through.COPY
                index = used[part.root, through]
            else:
                through, index = None, used[src, dst, routes]
                used[src, dst, routes] += 1
            fifos.append(Fifo(src, (dst,), share, index, routes, slowest(graph, routes), through))
        if part.in_switch:
            used[part.root, Through.SUM] += 1
            used[part.root, Through.COPY] += 1
            channels.append(Channel(_switch_steps(schedule, part, share, queue)))
        else:
            channels.append(Channel(_steps(schedule, part, share, queue)))
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


def _steps(
    schedule: Schedule, part: Part, share: int, queue: dict[tuple[str, int, int], int]
) -> tuple[tuple[Step, ...], ...]:
    up_in: dict[int, list[int]] = defaultdict(list)
    up_out: dict[int, list[int]] = defaultdict(list)
    down_in: dict[int, list[int]] = defaultdict(list)
    down_out: dict[int, list[int]] = defaultdict(list)
    for (phase, src, dst), fifo in queue.items():
        into, out = (up_in, up_out) if phase == "up" else (down_in, down_out)
        into[dst].append(fifo)
        out[src].append(fifo)
    ranks: list[tuple[Step, ...]] = []
    for rank in range(schedule.nranks):
        steps: list[Step] = []
        down = tuple(down_out[rank])
        stores = not schedule.collective.traits.output.at_root or rank == schedule.root
        if rank == part.root:
            if part.reduce:
                steps.append(Step(share, 0, True, tuple(up_in[rank]), True, down))
            else:
                steps += [Step(share, 0, True, (), False, down)] if down else []
                steps += [Step(share, 0, True, (), True, ())] if stores else []
        else:
            if up_out[rank]:
                steps.append(Step(share, 0, True, tuple(up_in[rank]), False, tuple(up_out[rank])))
            if down_in[rank]:
                steps.append(Step(share, 0, False, tuple(down_in[rank]), True, down))
        ranks.append(tuple(steps))
    return tuple(ranks)


def _switch_steps(
    schedule: Schedule, part: Part, share: int, queue: dict[tuple[str, int, int], int]
) -> tuple[tuple[Step, ...], ...]:
    """All ranks put their input where the switch adds it up; the head reads the sum, or its own input, and stores it
    through the switch; all ranks, the head too, take the result from their own slots."""
    ranks: list[tuple[Step, ...]] = []
    head = part.root
    up = tuple(queue["up", src, dst] for src, dst in part.reduce)
    down = tuple(queue["down", src, dst] for src, dst in part.broadcast)
    for rank in range(schedule.nranks):
        steps: list[Step] = []
        if up:
            steps.append(Step(share, 0, True, (), False, (queue["up", rank, head],)))
        if rank == head:
            steps.append(Step(share, 0, not up, up, not down, down))
        if down:
            steps.append(Step(share, 0, False, (queue["down", head, rank],), True, ()))
        ranks.append(tuple(steps))
    return tuple(ranks)
