"""A program, its plan and its graph -> a `Case`: flat numbers, all that an engine needs.

Units: microseconds and bytes. A *resource* is anything with a capacity that flows share: a link, the copy engine of a
rank, or the thread block of one channel on one rank. The first resources are the links of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from collc.errors import IRError
from collc.ir.interpret import cut_share
from collc.ir.nodes import Program, Step
from collc.simulate.params import BYTES_PER_US, Machine, Protocol
from collc.topology.model import PlanGraph


@dataclass(frozen=True, slots=True)
class CaseStep:
    """A step of a loop. `rate` is what its thread block moves per microsecond (inf: no limit), `launch` what its copies
    cost before their bytes move."""

    share: int
    lag: int
    recv: tuple[int, ...]
    send: tuple[int, ...]
    rate: float
    launch: float = 0.0


@dataclass(frozen=True, slots=True)
class Loop:
    """One channel on one rank."""

    rank: int
    channel: int
    steps: tuple[CaseStep, ...]


@dataclass(frozen=True, slots=True)
class CaseFifo:
    """A FIFO: its two loops, the links on its way, and the delay after its writer's step.

    Where FIFOs that behave alike are simulated as one (`collc.simulate.lump`), `weights` says how many of them cross
    each of `links` (empty: one each) and `copies` how many of them one step sends into.
    """

    writer: int
    reader: int
    links: tuple[int, ...]
    delay: float
    weights: tuple[int, ...] = ()
    copies: int = 1


@dataclass(frozen=True)
class Case:
    """One call, ready to run.

    Args:
        chunks: per share (number, bytes of each but the last, bytes of the last).
        steps_of: per share, how many steps work on it.
        capacity: bytes per microsecond of each link, protocol and class efficiency included, then of copy engines.
    """

    loops: tuple[Loop, ...]
    fifos: tuple[CaseFifo, ...]
    chunks: tuple[tuple[int, int, int], ...]
    steps_of: tuple[int, ...]
    capacity: tuple[float, ...]
    slots: int
    launch: float
    step: float
    credit: float

    def size(self, share: int, chunk: int) -> int:
        """Bytes of a chunk."""
        number, each, last = self.chunks[share]
        return last if chunk == number - 1 else each

    @property
    def executions(self) -> int:
        """How many steps run, over all chunks."""
        return sum(number * steps for (number, _, _), steps in zip(self.chunks, self.steps_of, strict=True))


def fifo_routes(program: Program) -> tuple[tuple[int, ...], ...]:
    """The links of each FIFO.

    Raises:
        IRError: a FIFO has several readers, or no route.
    """
    for number, fifo in enumerate(program.fifos):
        if len(fifo.dsts) != 1:
            hint = "simulate the program of target cuda"
            raise IRError("a FIFO with several readers has no single route", where=f"fifo {number}", hint=hint)
        if not fifo.routes:
            raise IRError("has no route: lower it with the plan's graph", where=f"fifo {number}")
    return tuple(fifo.routes[0] for fifo in program.fifos)


def make_case(
    program: Program, graph: PlanGraph, machine: Machine, protocol: Protocol, count: int, element_bytes: int
) -> Case:
    """Cuts a call of `count` elements (NCCL's count) and attaches speeds and delays."""
    routes = fifo_routes(program)
    engine = machine.copies
    copied = [engine is not None and any(graph.links[i].kind in engine.kinds for i in links) for links in routes]
    loops: list[Loop] = []
    writer, reader = [-1] * len(program.fifos), [-1] * len(program.fifos)
    for c, channel in enumerate(program.channels):
        for rank, steps in enumerate(channel.steps):
            if not steps:
                continue
            for step in steps:
                for f in step.send:
                    writer[f] = len(loops)
                for f in step.recv:
                    reader[f] = len(loops)
            loops.append(Loop(rank, c, tuple(_step(step, machine, protocol, copied) for step in steps)))
    fifos = []
    for f, links in enumerate(routes):
        extra = sum(float(graph.links[i].latency_us) + machine.link_class(graph.links[i].kind).hop_us for i in links)
        delay = max(0.0, protocol.hop_us - machine.step_us) + extra
        if copied[f] and engine is not None and engine.gbps is not None:
            links = (*links, len(graph.links) + program.fifos[f].src)
        fifos.append(CaseFifo(writer[f], reader[f], links, delay))
    engines = () if engine is None or engine.gbps is None else (engine.gbps * BYTES_PER_US,) * program.nranks
    return Case(
        loops=tuple(loops),
        fifos=tuple(fifos),
        chunks=tuple(_chunks(program, s, count, element_bytes) for s in range(len(program.shares))),
        steps_of=steps_of(loops, len(program.shares)),
        capacity=(
            *(
                float(link.gbps) * BYTES_PER_US * protocol.efficiency * machine.link_class(link.kind).efficiency
                for link in graph.links
            ),
            *engines,
        ),
        slots=program.slots,
        launch=machine.launch_us + protocol.start_us,
        step=machine.step_us,
        credit=machine.credit_us,
    )


def with_count(case: Case, program: Program, count: int, element_bytes: int) -> Case:
    """The same call with another count, or with another chunk size of the same program."""
    chunks = tuple(_chunks(program, s, count, element_bytes) for s in range(len(program.shares)))
    return replace(case, chunks=chunks)


def steps_of(loops: Sequence[Loop], nshares: int) -> tuple[int, ...]:
    """Per share, how many steps work on it."""
    found = [0] * nshares
    for loop in loops:
        for step in loop.steps:
            found[step.share] += 1
    return tuple(found)


def _step(step: Step, machine: Machine, protocol: Protocol, copied: Sequence[bool]) -> CaseStep:
    limits = [protocol.block_gbps, machine.reduce_gbps if step.reduces else None]
    rate = min((limit * BYTES_PER_US for limit in limits if limit is not None), default=math.inf)
    launch = machine.copies.launch_us * sum(copied[f] for f in step.send) if machine.copies else 0.0
    return CaseStep(step.share, step.lag, step.recv, step.send, rate, launch)


def _chunks(program: Program, share: int, count: int, element_bytes: int) -> tuple[int, int, int]:
    cut = cut_share(program, share, count, element_bytes)
    if not cut.nchunks:
        return (0, 0, 0)
    last = cut.end - cut.begin - (cut.nchunks - 1) * cut.chunk
    return (cut.nchunks, cut.chunk * element_bytes, max(last, 0) * element_bytes)
