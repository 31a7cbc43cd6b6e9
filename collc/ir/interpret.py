"""The interpreter, which defines the meaning of a program.

It runs a program step by step, in a random order of ranks and channels that the FIFOs allow. The data are numpy arrays,
or sets of contributors: each element then records the ranks whose inputs it contains. The input and output of a rank
may share memory, so a step that overwrites input before another step reads it gives a wrong result.
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
    """The range of a share in its block for one call, in elements.

    Attributes:
        begin, end: the share covers [begin, end) of the block.
        chunk: elements of each chunk except the last.
    """

    begin: int
    end: int
    chunk: int
    nchunks: int


def cut_part(weights: Sequence[int], part: int, count: int, unit: int) -> tuple[int, int]:
    """Returns the range of a block that a path class carries, as `cut_part` of step_program.h computes it.

    Args:
        weights: the weight of each path class.
        part: the number of the path class.
        count: elements of the block.
        unit: the number of elements in 16 bytes; boundaries are multiples of it, except the end of the block.
    """
    if not weights[part]:
        return 0, 0
    total, below = sum(weights), sum(weights[:part])
    end = below + weights[part]
    return count * below // total // unit * unit, count if end == total else count * end // total // unit * unit


def cut_share(
    program: Program, share: int, count: int, element_bytes: int, weights: Sequence[int] | None = None
) -> ShareRange:
    """Returns the range and the chunks of a share, as `cut_share` of step_program.h computes them.

    All boundaries except the end of the block are multiples of 16 bytes. The chunks are as few as `chunk_bytes` allows,
    and have one size except the last, which may be smaller. This size is the share divided by the number of chunks,
    rounded up to a multiple of 16 bytes. In a share of 2^32 elements or more it is `chunk_bytes`.

    Args:
        count: elements of the block.
        weights: the call's weights of the path classes; default: the program's.
    """
    unit = max(1, 16 // element_bytes)
    part = program.shares[share]
    weights = program.weights if weights is None else weights
    first, last = cut_part(weights, part.part, count, unit) if weights else (0, count)
    carried = last - first
    begin = first + int(carried * part.lo) // unit * unit
    end = last if part.hi == 1 else first + int(carried * part.hi) // unit * unit
    largest = program.chunk_bytes // element_bytes // unit * unit
    nchunks = -(-(end - begin) // largest)
    even = -(-(end - begin) // nchunks) if nchunks and end - begin < 1 << 32 else largest
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
    """Runs a program on one input and one output array per rank.

    Args:
        inputs, outputs: arrays in NCCL's layout for `count`. The call writes the outputs. The two arrays of a rank may
            share memory, as in in-place calls.
        reduce: combines the operands of a step elementwise, from left to right.
        element_bytes: the element size that cuts the shares; default: the arrays' item size.
        seed: of the random order in which ranks and channels progress.
        resident: the number of channels of a rank that may run at the same time, in their order, as on a GPU with few
            free multiprocessors; default: all.
        weights: this call's weights of the path classes; default: the program's.

    Raises:
        IRError: a deadlock (the message names the waiting steps), a chunk out of turn, or weights that are not valid.
    """
    size = element_bytes if element_bytes is not None else inputs[0].itemsize
    if weights is not None:
        check_weights(tuple(weights))
        program = program.replace(weights=tuple(weights))
    _Run(program, inputs, outputs, reduce, count, size, seed, resident).go()


@dataclass
class _Queue:
    """The slots that FIFOs of one `memory` share, the chunks written so far, and those read by each destination."""

    slots: list[Array | None]
    written: int = 0
    read: dict[int, int] = field(default_factory=dict)


@dataclass
class _Loop:
    """The position of one rank in one channel."""

    rank: int
    channel: int
    iteration: int = 0
    step: int = 0


class _Run:
    """The state of one run."""

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
        nchunks = max((r.nchunks for r in self.ranges), default=0)
        self.iterations = nchunks + max((s.lag for s in steps), default=0)

    def go(self) -> None:
        unfinished = [
            [_Loop(r, c) for c in range(len(self.program.channels)) if self.program.channels[c].steps[r]]
            for r in range(self.program.nranks)
        ]
        if self.iterations == 0:
            return
        while any(unfinished):
            loops = [loop for rank in unfinished for loop in rank[: self.resident]]
            self.random.shuffle(loops)
            progress = [self.advance(loop, self.random.randint(1, 4)) for loop in loops]
            if not any(progress):
                raise IRError("deadlock: " + "; ".join(self.describe(loop) for loop in loops[:4]))
            for rank in unfinished:
                rank[:] = [loop for loop in rank if loop.iteration < self.iterations]

    def advance(self, loop: _Loop, budget: int) -> bool:
        """Runs up to `budget` steps that process a chunk. Returns whether the position has changed."""
        steps = self.program.channels[loop.channel].steps[loop.rank]
        has_moved = False
        while loop.iteration < self.iterations and budget:
            step = steps[loop.step]
            chunk = loop.iteration - step.lag
            if 0 <= chunk < self.ranges[step.share].nchunks:
                if self.blocked_on(loop.rank, step, chunk) is not None:
                    return has_moved
                self.execute(loop.rank, step, chunk)
                budget -= 1
            has_moved = True
            loop.step += 1
            if loop.step == len(steps):
                loop.iteration, loop.step = loop.iteration + 1, 0
        return has_moved

    def blocked_on(self, rank: int, step: Step, chunk: int) -> str | None:
        """Returns what the step waits for; None if it can run."""
        for f in step.recv:
            queue = self.queues[f]
            if queue.written <= queue.read[rank]:
                return f"chunk {chunk} from rank {self.program.fifos[f].src}"
        for f in step.send:
            queue = self.queues[f]
            if queue.written - min(queue.read.values()) >= self.program.slots:
                return f"a free slot towards rank {self.program.fifos[f].dsts[0]}"
        return None

    def check_turn(self, f: int, chunk: int, item: int) -> None:
        """Checks that the next item of the queue is this chunk of this FIFO."""
        fifo = self.program.fifos[f]
        if item != chunk * fifo.turns + fifo.turn:
            raise IRError(f"chunk {chunk} is out of turn: {item} went before it", where=f"fifo {f}")

    def execute(self, rank: int, step: Step, chunk: int) -> None:
        share = self.ranges[step.share]
        block = self.program.shares[step.share].block
        begin = share.begin + chunk * share.chunk
        end = min(begin + share.chunk, share.end)
        sources: list[Array] = []
        for f in step.recv:
            queue = self.queues[f]
            self.check_turn(f, chunk, queue.read[rank])
            value = queue.slots[queue.read[rank] % self.program.slots]
            assert value is not None
            sources.append(value)
        if self.program.sums_in_switch(step):
            self.random.shuffle(sources)  # a switch adds in an unknown order
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
    """Runs a program on sets of contributors: an input element of rank r is the bit mask ``1 << r`` (Python integers).

    The reduction is a union, which refuses to count a rank twice. Each share of a path class with a weight has at least
    one chunk of one element, and the largest share has about `chunks` chunks.

    Args:
        seed, resident: as in `run`.
        weights: of the path classes, for a multi-path program; default: the program's.

    Returns:
        The outputs per rank, in NCCL's layout, as object arrays of masks; an element that was not written is None.

    Raises:
        IRError: as `run`, or an input is reduced twice.
    """
    weights = tuple(weights or program.weights)
    widths = [
        (share.hi - share.lo) * (Fraction(weights[share.part], sum(weights)) if weights else 1)
        for share in program.shares
    ]
    widths = [width for width in widths if width]
    # Elements of 16 bytes: cut_part and cut_share round boundaries down to whole elements. A share that is two elements
    # wide before both roundings has at least one element after them.
    count = max(int(2 / min(widths)) + 1, chunks)
    small = program.replace(chunk_bytes=16 * max(1, -(-int(max(widths) * count) // chunks)))
    layout = block_layout(program.collective, program.nranks, program.root)

    def array(blocks: dict[int, int], fill: object) -> Array:
        size = (max(blocks.values()) + 1) * count if blocks else 0
        result = np.empty(size, dtype=object)
        result[:] = fill
        return result

    inputs = [array(layout.in_blocks[r], 1 << r) for r in range(program.nranks)]
    outputs = [array(layout.out_blocks[r], None) for r in range(program.nranks)]
    run(
        small,
        inputs,
        outputs,
        _disjoint_union,
        count=count,
        element_bytes=16,
        seed=seed,
        resident=resident,
        weights=weights or None,
    )
    return outputs


def _disjoint_union(operands: Sequence[Array]) -> Array:
    union = operands[0].copy()
    for operand in operands[1:]:
        for index, mask in enumerate(operand):
            if both := union[index] & mask:
                raise IRError(f"the input of rank {both.bit_length() - 1} is reduced twice")
            union[index] |= mask
    return union
