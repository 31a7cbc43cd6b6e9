"""The interpreter: the definition of what a program means.

It runs a program step by step under any order of ranks and channels that the FIFOs allow, on two kinds of data: sets of
contributors (every element remembers whose inputs it holds) and numpy arrays. Slots are real: a value that is written
over before it was read shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from collc.collectives.blocks import block_layout
from collc.errors import IRError
from collc.ir.arithmetic import Array, Reduce
from collc.ir.nodes import Program, Step, check_weights


@dataclass(frozen=True, slots=True)
class ShareRange:
    """The range of a share in its block for one call, in elements; computed as `cut_share` of step_program.h does."""

    begin: int
    end: int
    chunk: int
    nchunks: int


def cut_part(weights: Sequence[int], part: int, count: int, unit: int) -> tuple[int, int]:
    """What a class carries of a block of `count` elements, as `cut_part` of step_program.h computes it."""
    if not weights[part]:
        return 0, 0
    total, below = sum(weights), sum(weights[:part])
    end = below + weights[part]
    return count * below // total // unit * unit, count if end == total else count * end // total // unit * unit


def cut_share(
    program: Program, share: int, count: int, element_bytes: int, weights: Sequence[int] | None = None
) -> ShareRange:
    """Cuts `count` elements: boundaries on 16 bytes where the count allows, chunks equal up to one such unit.

    Of more than 2^32 elements the last chunk may be a small one.

    Args:
        weights: of the call's classes [the program's].
    """
    unit = max(1, 16 // element_bytes)
    part = program.shares[share]
    chosen = program.weights if weights is None else weights
    first, last = cut_part(chosen, part.part, count, unit) if chosen else (0, count)
    carried = last - first
    begin = first + int(carried * part.lo) // unit * unit
    end = last if part.hi == 1 else first + int(carried * part.hi) // unit * unit
    most = program.chunk_bytes // element_bytes // unit * unit
    nchunks = -(-(end - begin) // most)
    even = -(-(end - begin) // nchunks) if nchunks and end - begin < 1 << 32 else most
    return ShareRange(begin, end, -(-even // unit) * unit, nchunks)


def run(
    program: Program,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    reduce: Reduce,
    *,
    count: int,
    element_bytes: int | None = None,
    seed: int = 0,
    resident: int | None = None,
    weights: Sequence[int] | None = None,
) -> None:
    """Runs a program on one input and output array per rank (they may share memory, as in-place calls do).

    Args:
        inputs, outputs: arrays in NCCL's layout for `count`; outputs are written.
        reduce: combines the operands of a step elementwise, from the left.
        element_bytes: size for the cut; default the arrays' own.
        seed: the order in which ranks and channels progress.
        resident: how many channels of a rank may run at once (in order), as on a GPU with few free multiprocessors.
        weights: of this call's classes, the same on all ranks [the program's].

    Raises:
        IRError: a deadlock, naming who waits for what.
    """
    size = element_bytes if element_bytes is not None else inputs[0].itemsize
    if weights is not None:
        check_weights(tuple(weights))
        program = program.replace(weights=tuple(weights))
    _Run(program, inputs, outputs, reduce, count, size, seed, resident).go()


@dataclass
class _Queue:
    """A FIFO at run time: its slots, how many chunks were written, how many each destination has read."""

    slots: list[Array | None]
    written: int = 0
    read: dict[int, int] = field(default_factory=dict)


@dataclass
class _Loop:
    """One channel on one rank: where it stands."""

    rank: int
    channel: int
    iteration: int = 0
    step: int = 0


class _Run:
    def __init__(
        self,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        reduce: Reduce,
        count: int,
        element_bytes: int,
        seed: int,
        resident: int | None,
    ) -> None:
        self.program = program
        self.inputs, self.outputs, self.reduce, self.count = inputs, outputs, reduce, count
        self.random = random.Random(seed)
        self.resident = resident if resident is not None else len(program.channels)
        self.layout = block_layout(program.collective, program.nranks, program.root)
        self.ranges = [cut_share(program, s, count, element_bytes) for s in range(len(program.shares))]
        shared = {f.memory: _Queue([None] * program.slots, 0, dict.fromkeys(f.dsts, 0)) for f in program.fifos}
        self.queues = [shared[f.memory] for f in program.fifos]
        steps = [s for c in program.channels for rank in c.steps for s in rank]
        most = max((r.nchunks for r in self.ranges), default=0)
        self.iterations = most + max((s.lag for s in steps), default=0)

    def go(self) -> None:
        waiting = [
            [_Loop(r, c) for c in range(len(self.program.channels)) if self.program.channels[c].steps[r]]
            for r in range(self.program.nranks)
        ]
        while any(waiting):
            loops = [loop for rank in waiting for loop in rank[: self.resident]]
            self.random.shuffle(loops)
            moved = [self.advance(loop, self.random.randint(1, 4)) for loop in loops]
            if not any(moved):
                raise IRError("deadlock: " + "; ".join(self.describe(loop) for loop in loops[:4]))
            for rank in waiting:
                rank[:] = [loop for loop in rank if loop.iteration < self.iterations]

    def advance(self, loop: _Loop, budget: int) -> bool:
        """Runs up to `budget` steps with an effect; True if the loop moved at all."""
        steps = self.program.channels[loop.channel].steps[loop.rank]
        moved = False
        while loop.iteration < self.iterations and budget:
            step = steps[loop.step]
            chunk = loop.iteration - step.lag
            if 0 <= chunk < self.ranges[step.share].nchunks:
                if self.blocked_on(loop.rank, step, chunk) is not None:
                    return moved
                self.execute(loop.rank, step, chunk)
                budget -= 1
            moved = True
            loop.step += 1
            if loop.step == len(steps):
                loop.iteration, loop.step = loop.iteration + 1, 0
        return moved

    def blocked_on(self, rank: int, step: Step, chunk: int) -> str | None:
        for f in step.recv:
            queue = self.queues[f]
            if queue.written <= queue.read[rank]:
                return f"chunk {chunk} from rank {self.program.fifos[f].src}"
        for f in step.send:
            queue = self.queues[f]
            if queue.written - min(queue.read.values()) >= self.program.slots:
                return f"a free slot towards rank {self.program.fifos[f].dsts[0]}"
        return None

    def check_turn(self, f: int, chunk: int, passed: int) -> None:
        fifo = self.program.fifos[f]
        if passed != chunk * fifo.turns + fifo.turn:
            raise IRError(f"chunk {chunk} is out of turn: {passed} went before it", where=f"fifo {f}")

    def execute(self, rank: int, step: Step, chunk: int) -> None:
        share = self.ranges[step.share]
        block = self.program.shares[step.share].block
        begin = share.begin + chunk * share.chunk
        end = min(begin + share.chunk, share.end)
        sources: list[Array] = []
        for f in step.recv:
            queue = self.queues[f]
            self.check_turn(f, chunk, queue.read[rank])
            got = queue.slots[queue.read[rank] % self.program.slots]
            assert got is not None
            sources.append(got)
        if self.program.sums_in_switch(step):
            self.random.shuffle(sources)  # the order of the switch, which nobody knows
        if step.input:
            base = self.layout.in_blocks[rank][block] * self.count
            sources.insert(step.input_at, self.inputs[rank][base + begin : base + end])
        value = self.reduce(sources) if len(sources) > 1 else sources[0].copy()
        if step.output:
            base = self.layout.out_blocks[rank][block] * self.count
            self.outputs[rank][base + begin : base + end] = value
        for f in step.send:
            queue = self.queues[f]
            self.check_turn(f, chunk, queue.written)
            queue.slots[queue.written % self.program.slots] = value.copy()
        for f in step.recv:
            self.queues[f].read[rank] += 1
        for f in step.send:
            self.queues[f].written += 1

    def describe(self, loop: _Loop) -> str:
        step = self.program.channels[loop.channel].steps[loop.rank][loop.step]
        chunk = loop.iteration - step.lag
        reason = self.blocked_on(loop.rank, step, chunk)
        return f"channel {loop.channel}, rank {loop.rank}, step {loop.step} ({step.name}) waits for {reason}"


def run_on_sets(
    program: Program,
    *,
    chunks: int = 3,
    seed: int = 0,
    resident: int | None = None,
    weights: Sequence[int] | None = None,
) -> list[Array]:
    """Runs a program on contributor masks: an input element of rank r is the bit mask ``1 << r`` (Python integers).

    Reduction is union and refuses to count a rank twice. Each share gets at least one chunk of one element and the
    largest about `chunks` chunks.

    Args:
        weights: of the classes, for a program that is cut into them [its own].

    Returns:
        The outputs per rank, in NCCL's layout, as object arrays of masks; None where nothing was written.
    """
    chosen = tuple(weights or program.weights)
    widths = [
        (share.hi - share.lo) * (Fraction(chosen[share.part], sum(chosen)) if chosen else 1) for share in program.shares
    ]
    widths = [width for width in widths if width]
    # An element is 16 bytes here, so that no boundary is rounded; every share gets an element at least.
    count = max(int(1 / min(widths)) + 1, chunks)
    small = program.replace(chunk_bytes=16 * max(1, -(-int(max(widths) * count) // chunks)))
    layout = block_layout(program.collective, program.nranks, program.root)

    def array(blocks: dict[int, int], fill: object) -> Array:
        size = (max(blocks.values()) + 1) * count if blocks else 0
        made = np.empty(size, dtype=object)
        made[:] = fill
        return made

    inputs = [array(layout.in_blocks[r], 1 << r) for r in range(program.nranks)]
    outputs = [array(layout.out_blocks[r], None) for r in range(program.nranks)]
    run(
        small, inputs, outputs, _disjoint_union, count=count, element_bytes=16, seed=seed, resident=resident,
        weights=weights,
    )  # fmt: skip
    return outputs


def _disjoint_union(operands: Sequence[Array]) -> Array:
    union = operands[0].copy()
    for operand in operands[1:]:
        for at, mask in enumerate(operand):
            if union[at] & mask:
                raise IRError(f"the input of rank {(union[at] & mask).bit_length() - 1} is reduced twice")
            union[at] |= mask
    return union
