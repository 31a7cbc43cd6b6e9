"""FIFOs between servers as the host target's runtime moves them: by couriers, over all rails that join two servers.

Before, a FIFO between servers is one flow over the links of its route, and its writer is busy until the last byte is
there. After, the writer is done when its slot is full, as within a server. A courier, here a loop of its own for every
such FIFO, brings the chunk into the other server's half. All loops of one server share what its courier's thread moves,
and all FIFOs from one server to another take all rails, by their rates, whatever routes the plan gave them.

A chunk has a slot on both servers and keeps the first until its reader is done and the writer's server has heard that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Set

from collc.ir.nodes import Program
from collc.simulator.model import Case, CaseFifo, CaseStep, Loop, fifo_routes, steps_of
from collc.simulator.params import BYTES_PER_US, Courier, Protocol
from collc.simulator.rails import PARTS, Joined, Pair, Rails


def with_couriers(case: Case, program: Program, rails: Rails, courier: Courier, protocol: Protocol) -> Case:
    """The call with a courier at each end of every FIFO between servers; unchanged where there is none.

    Args:
        case: what `collc.simulator.model.make_case` made of the program over the protocol.
    """
    crossing = [(f, (program.server(fifo.src), program.server(fifo.dsts[0]))) for f, fifo in enumerate(program.fifos)]
    crossing = [(f, pair) for f, pair in crossing if pair[0] != pair[1]]
    if not crossing:
        return case
    joined = joined_servers(program, rails)
    # Links that carry parts of bytes count all bytes in parts.
    divided = {link for one in joined.values() if one.divides for link in one.links}
    wired = {link for one in joined.values() for link in one.links}
    late_us, touched = courier.late_us(protocol), courier.touched(protocol)
    first = len(case.capacity)
    servers = sorted({server for _, pair in crossing for server in pair})
    thread = {server: first + i for i, server in enumerate(servers)}
    loops, fifos = list(case.loops), [_in_parts(fifo, divided) for fifo in case.fifos]
    onward: dict[int, int] = {}
    for f, pair in crossing:
        onward[f] = len(fifos)
        over = joined[pair]
        way = (*over.links, thread[pair[0]], thread[pair[1]])
        parts = tuple(part if link in divided else 1 for link, part in zip(over.links, over.parts, strict=True))
        weights = (*parts, touched, touched) if divided or touched != 1 else ()
        old = case.fifos[f]
        fifos[f] = CaseFifo(old.writer, len(loops), (), late_us)
        late = over.latency_us + late_us
        # Heads are stored and seen alike, whatever the protocol.
        credit = over.latency_us + courier.wake_us
        fifos.append(CaseFifo(len(loops), old.reader, way, late, weights, credit=credit, behind=f))
        step = CaseStep(program.fifos[f].share, 0, (f,), (onward[f],), math.inf, courier.chunk_us)
        loops.append(Loop(program.fifos[f].src, loops[fifos[f].writer].channel, (step,)))
    read = [_reading(loop, onward) for loop in loops[: len(case.loops)]] + loops[len(case.loops) :]
    return dataclasses.replace(
        case,
        loops=tuple(read),
        fifos=tuple(fifos),
        steps_of=steps_of(read, len(case.chunks)),
        capacity=(
            *(
                # Only data cross the network, without the flags.
                capacity * (PARTS if link in divided else 1) / (protocol.efficiency if link in wired else 1)
                for link, capacity in enumerate(case.capacity)
            ),
            *(courier.gbps * BYTES_PER_US for _ in servers),
        ),
    )


def joined_servers(program: Program, rails: Rails) -> dict[Pair, Joined]:
    """Returns the connection of each pair of servers where one sends to the other in a program."""
    ends = ((program.server(fifo.src), program.server(fifo.dsts[0])) for fifo in program.fifos)
    return rails.joined(zip(ends, fifo_routes(program), strict=True))


def _in_parts(fifo: CaseFifo, divided: Set[int]) -> CaseFifo:
    """Returns the FIFO with the bytes of `divided` links counted in parts."""
    if divided.isdisjoint(fifo.links):
        return fifo
    weights = fifo.weights or (1,) * len(fifo.links)
    scaled = (w * PARTS if link in divided else w for link, w in zip(fifo.links, weights, strict=True))
    return dataclasses.replace(fifo, weights=tuple(scaled))


def _reading(loop: Loop, onward: Mapping[int, int]) -> Loop:
    """The loop, whose steps receive from the second halves."""
    steps = (dataclasses.replace(s, recv=tuple(onward.get(f, f) for f in s.recv)) for s in loop.steps)
    return dataclasses.replace(loop, steps=tuple(steps))
