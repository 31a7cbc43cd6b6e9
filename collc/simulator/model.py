"""A program, its plan and its graph -> a `Case`: flat numbers, all that an engine needs.

Units: microseconds and bytes. A *resource* is anything with a capacity that flows share: a link, the memory of a CPU
or of a card, the copy engine of a rank, or the thread block of one channel on one rank. The first resources are the
links of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collc.errors import IRError, UsageError
from collc.ir.interpret import cut_share
from collc.ir.nodes import Fifo, Program, Step, Through
from collc.simulator.params import BYTES_PER_US, Machine, Protocol
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

    If FIFOs that behave alike are simulated as one (`collc.simulator.lump`), `weights` gives the number of FIFOs that
    cross each of `links` (empty: one each), and `copies` the number of FIFOs that one step sends into.

    `credit` is the delay, beyond the machine's, until a freed slot is seen by the writer. A chunk that comes from the
    FIFO `behind` (-1: none) keeps its slot there until it has left this one: that FIFO's reader frees nothing itself.

    FIFOs that take turns in the slots of one FIFO have its number as their `queue` (-1: the FIFO has slots).
    """

    writer: int
    reader: int
    links: tuple[int, ...]
    delay: float
    weights: tuple[int, ...] = ()
    copies: int = 1
    credit: float = 0.0
    behind: int = -1
    queue: int = -1


@dataclass(frozen=True)
class Case:
    """One call, ready to run.

    Args:
        chunks: per share (number, bytes of each but the last, bytes of the last).
        steps_of: per share, how many steps work on it.
        capacity: bytes per microsecond of each link, protocol and class efficiency included, then of CPU memories,
            cards and copy engines.
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
        """The number of steps executed, over all chunks."""
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
    inside = any(fifo.through for fifo in program.fifos)
    if inside and machine.nvls is None:
        raise UsageError(f"the parameters of {machine.name} do not say what sums inside switches take")
    engine = machine.copies
    copied = [engine is not None and any(graph.links[i].kind in engine.kinds for i in links) for links in routes]
    loops: list[Loop] = []
    writer, reader = [-1] * len(program.fifos), [-1] * len(program.fifos)
    ends: list[list[Step]] = [[] for _ in program.fifos]
    for c, channel in enumerate(program.channels):
        for rank, steps in enumerate(channel.steps):
            if not steps:
                continue
            for step in steps:
                for f in step.send:
                    writer[f] = len(loops)
                    ends[f].insert(0, step)
                for f in step.recv:
                    reader[f] = len(loops)
                    ends[f].append(step)
            loops.append(Loop(rank, c, tuple(_step(program, step, machine, protocol, copied) for step in steps)))
    shared = _Shared(graph, machine, protocol, machine.nvls.efficiency if inside and machine.nvls else None)
    fifos = []
    queues: dict[object, int] = {}
    for f, links in enumerate(routes):
        extra = sum(float(graph.links[i].latency_us) + machine.link_class(graph.links[i].kind).hop_us for i in links)
        delay = max(0.0, protocol.hop_us - machine.step_us) + extra
        own = dict.fromkeys(_own_links(program.fifos[f], links), 1)
        crossed = {**own, **shared.crossed(program, f, links, ends[f], copied[f])}
        weights = () if all(weight == 1 for weight in crossed.values()) else tuple(crossed.values())
        queue = queues.setdefault(program.fifos[f].memory, f) if program.fifos[f].turns > 1 else -1
        fifos.append(CaseFifo(writer[f], reader[f], tuple(crossed), delay, weights, queue=queue))
    return Case(
        loops=tuple(loops),
        fifos=tuple(fifos),
        chunks=tuple(_chunks(program, s, count, element_bytes) for s in range(len(program.shares))),
        steps_of=steps_of(loops, len(program.shares)),
        capacity=tuple(shared.capacity),
        slots=program.slots,
        launch=machine.launch_us + protocol.start_us,
        step=machine.step_us,
        credit=machine.credit_us,
    )


def _own_links(fifo: Fifo, links: tuple[int, ...]) -> tuple[int, ...]:
    """The links that a FIFO's bytes cross for themselves.

    Where the switch adds up, every writer's come up its link, and the sum goes down the head's once; where it copies,
    the head's come up once, and go down every reader's. What goes once is counted with the head's own FIFO. A sum is
    fetched in the head's step; here its bytes move in the steps of those who put them there: as much on every link.
    """
    if fifo.through is None or fifo.src == fifo.dsts[0]:
        return links
    return links[:1] if fifo.through is Through.SUM else links[1:]


# The parts of a byte of GPU memory. A step's accesses divide evenly over up to ten FIFOs. Sums of weights are 32-bit
# integers in C++.
_PARTS = 5040


class _Shared:
    """Resources that flows share, apart from thread blocks, and their capacities: links, memories, copy engines."""

    def __init__(self, graph: PlanGraph, machine: Machine, protocol: Protocol, inside: float | None) -> None:
        self.graph = graph
        # Links carry less payload where switches add up and copy: NCCL's logs say how much.
        self.capacity = [
            float(link.gbps) * BYTES_PER_US * protocol.efficiency
            * (machine.link_class(link.kind).efficiency if inside is None else inside)
            for link in graph.links
        ]  # fmt: skip
        self.memories = {
            v: self._add(float(vertex.memory_gbps) * protocol.efficiency)
            for v, vertex in enumerate(graph.vertices)
            if vertex.memory_gbps is not None
        }
        memory = machine.memory_gbps
        self.cards: dict[int, int] = {}
        if memory is not None:
            self.cards = {r: self._add(memory * _PARTS) for r in graph.ranks if self._may_bind(r, memory)}
        engine = machine.copies
        self.engines: dict[int, int] = {}
        if engine is not None and engine.gbps is not None:
            self.engines = {r: self._add(engine.gbps) for r in graph.ranks}

    def _add(self, gbps: float) -> int:
        self.capacity.append(gbps * BYTES_PER_US)
        return len(self.capacity) - 1

    def _may_bind(self, rank: int, memory_gbps: float) -> bool:
        """Returns whether the rank's links can bring more bytes than its memory moves.

        A byte that comes in is written and read, its part of the input is read, and the output is written. A byte that
        goes out is read and written. A memory that never limits the rate would only cost time in the simulation.
        """
        into = sum(float(link.gbps) for link in self.graph.links if link.dst == rank)
        out = sum(float(link.gbps) for link in self.graph.links if link.src == rank)
        return 4 * into + 2 * out > memory_gbps

    def crossed(
        self, program: Program, fifo: int, links: Sequence[int], ends: Sequence[Step], copied: bool
    ) -> Mapping[int, int]:
        """Returns the resources of a FIFO's flow other than its links, and the bytes (GPU: parts) there per byte.

        A byte that is staged in a CPU's memory, the first memory on the path, is written and read there. In the memory
        of the reader's GPU it is written and read; the step's FIFOs share its other accesses to that memory.
        """
        found: dict[int, int] = {}
        staged = [self.memories[v] for v in (self.graph.links[i].dst for i in links) if v in self.memories]
        if staged:
            found[staged[0]] = 2
        src, dst = program.fifos[fifo].src, program.fifos[fifo].dsts[0]
        if self.cards:
            writes, reads = ends
            own = 0 if writes.recv else (writes.input + writes.output) * _PARTS // len(writes.send)
            beside = (reads.input + reads.output) * _PARTS // len(reads.recv)
            if program.fifos[fifo].through is Through.SUM:
                own += 2 * _PARTS  # the slot lies in the writer's card
            else:
                beside += 2 * _PARTS
            for rank, times in ((src, own), (dst, beside)):
                if rank in self.cards and times:
                    found[self.cards[rank]] = found.get(self.cards[rank], 0) + times
        if copied and self.engines:
            found[self.engines[src]] = 1
        return found


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


def _step(program: Program, step: Step, machine: Machine, protocol: Protocol, copied: Sequence[bool]) -> CaseStep:
    """All that a block reads and writes counts."""
    rate = math.inf
    if protocol.block_gbps is not None:
        rate = protocol.block_gbps * BYTES_PER_US * max(1, len(step.send)) / program.touches(step)
    launch = machine.copies.launch_us * sum(copied[f] for f in step.send) if machine.copies else 0.0
    return CaseStep(step.share, step.lag, step.recv, step.send, rate, launch)


def _chunks(program: Program, share: int, count: int, element_bytes: int) -> tuple[int, int, int]:
    cut = cut_share(program, share, count, element_bytes)
    if not cut.nchunks:
        return (0, 0, 0)
    last = cut.end - cut.begin - (cut.nchunks - 1) * cut.chunk
    return (cut.nchunks, cut.chunk * element_bytes, max(last, 0) * element_bytes)
