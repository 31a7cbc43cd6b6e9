"""FIFOs between servers as the host target's runtime moves them: by couriers, over one connection per pair of servers.

Before, a FIFO between servers is one flow over the links of its route, and its writer is busy until the last byte is
there. After, the writer is done when its slot is full, as within a server. A courier, here a loop of its own for every
such FIFO, brings the chunk into the other server's half. All loops of one server share what its courier's thread moves,
and all FIFOs from one server to another take the same rail, whatever routes the plan gave them: the widest of those.

A chunk has a slot on both servers and keeps the first until its reader is done and the writer's server has heard that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from collc.ir.nodes import Program
from collc.simulator.model import Case, CaseFifo, CaseStep, Loop, fifo_routes, steps_of
from collc.simulator.params import BYTES_PER_US, Courier
from collc.topology.model import LinkKind, PlanGraph

Pair = tuple[int, int]


def with_couriers(case: Case, program: Program, graph: PlanGraph, courier: Courier) -> Case:
    """The call with a courier at each end of every FIFO between servers; unchanged where there is none.

    Args:
        case: what `collc.simulator.model.make_case` made of the program.
    """
    crossing = [(f, (program.server(fifo.src), program.server(fifo.dsts[0]))) for f, fifo in enumerate(program.fifos)]
    crossing = [(f, pair) for f, pair in crossing if pair[0] != pair[1]]
    if not crossing:
        return case
    rails = rails_of_pairs(program, graph)
    first = len(case.capacity)
    servers = sorted({server for _, pair in crossing for server in pair})
    thread = {server: first + i for i, server in enumerate(servers)}
    loops, fifos = list(case.loops), list(case.fifos)
    onward: dict[int, int] = {}
    for f, pair in crossing:
        onward[f] = len(fifos)
        rail = rails[pair]
        latency = sum(float(graph.links[link].latency_us) for link in rail)
        way = (*rail, thread[pair[0]], thread[pair[1]])
        old = case.fifos[f]
        fifos[f] = CaseFifo(old.writer, len(loops), (), courier.wake_us)
        late = latency + courier.wake_us
        fifos.append(CaseFifo(len(loops), old.reader, way, late, credit=late, behind=f))
        step = CaseStep(program.fifos[f].share, 0, (f,), (onward[f],), math.inf, courier.chunk_us)
        loops.append(Loop(program.fifos[f].src, loops[fifos[f].writer].channel, (step,)))
    read = [_reading(loop, onward) for loop in loops[: len(case.loops)]] + loops[len(case.loops) :]
    return dataclasses.replace(
        case,
        loops=tuple(read),
        fifos=tuple(fifos),
        steps_of=steps_of(read, len(case.chunks)),
        capacity=(*case.capacity, *(courier.gbps * BYTES_PER_US for _ in servers)),
    )


def rails_of_pairs(program: Program, graph: PlanGraph) -> dict[Pair, tuple[int, ...]]:
    """The network links that everything from one server to another takes in a program."""
    ends = ((program.server(fifo.src), program.server(fifo.dsts[0])) for fifo in program.fifos)
    return widest_rails(zip(ends, fifo_routes(program), strict=True), graph)


def widest_rails(routes: Iterable[tuple[Pair, tuple[int, ...]]], graph: PlanGraph) -> dict[Pair, tuple[int, ...]]:
    """For each pair of different servers, the network links of the widest route between them."""
    found: dict[Pair, tuple[int, ...]] = {}

    def worth(links: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        return (-min(float(graph.links[link].gbps) for link in links), links)

    for pair, route in routes:
        if pair[0] != pair[1]:
            rail = tuple(link for link in route if graph.links[link].kind is LinkKind.NET) or route
            found[pair] = min(found.get(pair, rail), rail, key=worth)
    return found


def _reading(loop: Loop, onward: Mapping[int, int]) -> Loop:
    """The loop, whose steps receive from the second halves."""
    steps = (dataclasses.replace(s, recv=tuple(onward.get(f, f) for f in s.recv)) for s in loop.steps)
    return dataclasses.replace(loop, steps=tuple(steps))
