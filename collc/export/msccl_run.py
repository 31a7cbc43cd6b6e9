"""Reads and runs MSCCL's XML by the published rules of its reader and interpreter, without a GPU.

`read_algorithm` refuses what its reader refuses, or would misread; `run_algorithm` runs thread blocks in a random
order, with one chunk in each connection at a time, the fewest that there can be.

Source: microsoft/msccl, src/graph/topo.cc, src/include/msccl.h, src/collectives/device/msccl_interpreter.h.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from collc.collectives.model import Collective
from collc.errors import IRError
from collc.export.msccl import MAX_BLOCKS, MAX_CHANNELS, MAX_CHUNKS, MAX_COUNT, MAX_STEPS, NAMES
from collc.export.mscclpp_run import expected
from collc.topology.probe.xmltree import Element, parse_xml

_BUFFERS = ("i", "o", "s")
# (receives, sends, reads its source, writes its target)
_KINDS = {
    "s": (False, True, True, False),
    "r": (True, False, False, True),
    "rcs": (True, True, False, True),
    "rrs": (True, True, True, False),
    "rrc": (True, False, True, True),
    "rrcs": (True, True, True, True),
    "cpy": (False, False, True, True),
}


@dataclass(frozen=True)
class Step:
    """`after`: the block and the step of the same GPU that it waits for."""

    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    after: tuple[int, int] | None
    awaited: bool


@dataclass(frozen=True)
class Block:
    """A thread block; peers are -1 where there is none."""

    sends: int
    receives: int
    channel: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Algorithm:
    """A file: `blocks[rank]` in the order of their numbers; chunks of every rank's buffers."""

    collective: Collective
    in_place: bool
    chunks: dict[str, int]
    blocks: tuple[tuple[Block, ...], ...]


def _wrong(line: int, what: str) -> IRError:
    return IRError(what, where=f"MSCCL algorithm:{line}" if line else "MSCCL algorithm")


def _number(element: Element, key: str, least: int, most: int) -> int:
    text = element.get(key)
    if not re.fullmatch("-?[0-9]{1,15}", text) or not least <= int(text) <= most:
        raise _wrong(element.line, f"`{key}` of <{element.tag}> is {text[:20]!r}, not a number from {least} to {most}")
    return int(text)


def read_algorithm(text: str) -> Algorithm:
    """The algorithm.

    Raises:
        CollcError: its reader would refuse or misread it; names the line.
    """
    root = parse_xml(text, "MSCCL algorithm")
    if root.tag != "algo" or not root.get("name") or root.get("proto") != "Simple":
        raise _wrong(root.line, "no algorithm with a name and protocol Simple")
    known = {name: item for item, name in NAMES.items()}
    if root.get("coll") not in known:
        raise _wrong(root.line, f"coll {root.get('coll')[:20]!r} is not run here")
    item = known[root.get("coll")]
    gpus = _number(root, "ngpus", 1, 1 << 12)
    loop = _number(root, "nchunksperloop", 1, 1 << 20)
    channels = _number(root, "nchannels", 1, MAX_CHANNELS)
    if [_number(child, "id", 0, gpus - 1) for child in root.children] != list(range(gpus)):
        raise _wrong(root.line, "its GPUs are not those from 0 on, in order")
    sizes = [{k: _number(gpu, f"{k}_chunks", 0, 1 << 20) for k in _BUFFERS} for gpu in root.children]
    traits = item.traits
    for gpu, size in zip(root.children, sizes, strict=True):
        inner = 1 if traits.input.per_rank or not traits.output.per_rank else gpus
        outer = 1 if traits.output.per_rank or not traits.input.per_rank else gpus
        if size != sizes[0] or size["i"] * inner != loop or size["o"] * outer != loop:
            raise _wrong(gpu.line, "its chunks do not fit nchunksperloop")
    blocks = tuple(_blocks(gpu, gpus, channels, sizes[0]) for gpu in root.children)
    for key in ("sends", "receives"):
        ends = Counter((r, getattr(b, key), b.channel) for r, own in enumerate(blocks) for b in own)
        if any(count > 1 for (_, peer, _), count in ends.items() if peer >= 0):
            raise _wrong(root.line, f"two blocks of a GPU on one channel with the same peer ({key})")
    return Algorithm(item, _number(root, "inplace", 0, 1) == 1, sizes[0], blocks)


def _blocks(gpu: Element, gpus: int, channels: int, sizes: dict[str, int]) -> tuple[Block, ...]:
    found = []
    for place, element in enumerate(gpu.children):
        if element.tag != "tb" or _number(element, "id", 0, MAX_BLOCKS - 1) != place:
            raise _wrong(element.line, f"thread block {place} is missing")
        sends, receives = (_number(element, key, -1, gpus - 1) for key in ("send", "recv"))
        if int(gpu.get("id")) in (sends, receives):
            raise _wrong(element.line, "a thread block whose peer is its own GPU")
        if len(element.children) > MAX_STEPS:
            raise _wrong(element.line, f"more than {MAX_STEPS} steps")
        steps = tuple(_step(child, number, sizes) for number, child in enumerate(element.children))
        for step, child in zip(steps, element.children, strict=True):
            if (_KINDS[step.kind][0] and receives < 0) or (_KINDS[step.kind][1] and sends < 0):
                raise _wrong(child.line, f"{step.kind} in a thread block without that peer")
        found.append(Block(sends, receives, _number(element, "chan", 0, channels - 1), steps))
    for block, element in zip(found, gpu.children, strict=True):
        for step in block.steps:
            if step.after is None:
                continue
            other, at = step.after
            if other >= len(found) or at >= len(found[other].steps) or not found[other].steps[at].awaited:
                raise _wrong(element.line, "a step waits for one that does not say when it is done")
    return tuple(found)


def _step(element: Element, number: int, sizes: dict[str, int]) -> Step:
    kind = element.get("type")
    if kind not in _KINDS or _number(element, "s", 0, MAX_STEPS - 1) != number:
        raise _wrong(element.line, f"step {number} of type {kind[:10]!r} is not run here")
    count = _number(element, "cnt", 1, MAX_COUNT)
    places = []
    for key, used in (("src", _KINDS[kind][2]), ("dst", _KINDS[kind][3])):
        buffer, at = element.get(f"{key}buf"), _number(element, f"{key}off", 0, MAX_CHUNKS)
        if buffer not in _BUFFERS or (used and at + count > sizes[buffer]):
            raise _wrong(element.line, f"{kind} beyond the end of buffer {buffer[:10]!r}")
        places.append((buffer, at))
    block, at = _number(element, "depid", -1, MAX_BLOCKS - 1), _number(element, "deps", -1, MAX_STEPS - 1)
    after = None if block < 0 else (block, at)
    return Step(kind, places[0], places[1], count, after, _number(element, "hasdep", 0, 1) == 1)


def prove_algorithm(algorithm: Algorithm) -> None:
    """Runs it on random numbers.

    Raises:
        IRError: a result is not that of the collective.
    """
    numbers = np.random.default_rng(1)
    inputs = [numbers.integers(0, 1 << 40, algorithm.chunks["i"] * 2) for _ in algorithm.blocks]
    outputs = run_algorithm(algorithm, 2, inputs, 1)
    for rank, (found, want) in enumerate(zip(outputs, expected(algorithm.collective, inputs), strict=True)):
        if not np.array_equal(found, want):
            raise _wrong(0, f"the result of rank {rank} is not that of {algorithm.collective.value}")


def run_algorithm(algorithm: Algorithm, rounds: int, inputs: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """One call; returns every rank's output.

    Args:
        rounds: of the loop: integers of each chunk, of which a round moves one.

    Raises:
        IRError: the thread blocks wait for each other for ever.
    """
    return _Machine(algorithm, rounds, random.Random(seed)).run(inputs)


class _Machine:
    def __init__(self, algorithm: Algorithm, rounds: int, order: random.Random) -> None:
        self._algorithm, self._rounds, self._order = algorithm, rounds, order
        self._wires: dict[tuple[int, int, int], np.ndarray] = {}
        self._done: dict[tuple[int, int], tuple[int, int]] = {}
        self._memory: list[dict[str, np.ndarray]] = []

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        for rank, values in enumerate(inputs):
            sizes = {k: n * self._rounds for k, n in self._algorithm.chunks.items()}
            memory = {k: np.full(n, -1, dtype=np.int64) for k, n in sizes.items()}
            if self._algorithm.in_place:
                short, long = sorted("io", key=lambda kind: sizes[kind])
                at = rank * sizes[short] if sizes[short] < sizes[long] else 0
                memory[short] = memory[long][at : at + sizes[short]]
            memory["i"][:] = values
            self._memory.append(memory)
        blocks = self._algorithm.blocks
        running = [self._block(r, n, block) for r, own in enumerate(blocks) for n, block in enumerate(own)]
        while running:
            self._order.shuffle(running)
            moved = False
            for block in list(running):
                step = next(block, None)
                if step is None:
                    running.remove(block)
                moved = moved or step is not False
            if not moved:
                raise _wrong(0, "its thread blocks wait for each other for ever")
        if self._wires:
            raise _wrong(0, "chunks were sent that nobody received")
        return [memory["o"].copy() for memory in self._memory]

    def _block(self, rank: int, number: int, block: Block) -> Iterator[bool]:
        """Runs a thread block; yields whether it could go on."""
        for round_ in range(self._rounds):
            for place, step in enumerate(block.steps):
                while step.after and self._done.get((rank, step.after[0]), (-1, -1)) < (round_, step.after[1]):
                    yield False
                receives, sends, reads, writes = _KINDS[step.kind]
                value = np.zeros(step.count, dtype=np.int64)
                if receives:
                    wire = (block.receives, rank, block.channel)
                    while wire not in self._wires:
                        yield False
                    value = value + self._wires.pop(wire)
                if reads:
                    value = value + self._memory[rank][step.source[0]][self._at(step.source[1], step, round_)]
                if writes:
                    self._memory[rank][step.target[0]][self._at(step.target[1], step, round_)] = value
                if sends:
                    wire = (rank, block.sends, block.channel)
                    while wire in self._wires:
                        yield False
                    self._wires[wire] = value
                if step.awaited:
                    self._done[rank, number] = (round_, place)
                yield True

    def _at(self, first: int, step: Step, round_: int) -> slice:
        """The integers of a round: one of each chunk."""
        begin = first * self._rounds + round_
        return slice(begin, begin + step.count * self._rounds, self._rounds)
