"""Reads and runs MSCCL++'s execution plans by the published rules of its loader and kernel, without a GPU.

`read_plan` rejects plans that its loader or its fixed tables reject or misread. `run_plan` runs calls of a plan on
16-byte units in a random order of the thread blocks, as a GPU may. Only the operations that `collc.export.mscclpp`
writes are supported.

Source: microsoft/mscclpp, src/core/executor/execution_plan.cc, executor.cc, src/core/include/execution_common.hpp
(the limits) and execution_kernel.hpp (the operations).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from collc.collectives.model import Collective
from collc.errors import IRError

_MAX_OPERATIONS, _MAX_CHANNELS, _PER_OPERATION, _LOCAL = 64, 16, 8, 2
_MAX_ITERATIONS = (1 << 16) - 1
_UNIT = 16  # bytes; all sizes and offsets are multiples of it
_DATA, _SIGNALS, _WAITS = ("put", "copy", "re", "res"), ("signal", "rlxsignal"), ("wait", "rlxwait")
_BUFFERS = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}

Json = dict[str, Any]


def read_plan(text: str) -> Json:
    """Returns the plan of a text, as JSON values.

    Raises:
        IRError: MSCCL++'s loader would reject or misread the plan. The error names the place.
    """
    try:
        plan = json.loads(text)
        _check(plan)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise _wrong("", f"{type(error).__name__}: {error}") from error
    assert isinstance(plan, dict)
    return plan


def _wrong(where: str, what: str) -> IRError:
    return IRError(what, where=f"MSCCL++ plan{', ' if where else ''}{where}")


def _check(plan: Json) -> None:
    if not isinstance(plan["name"], str) or not isinstance(plan["inplace"], bool):
        raise _wrong("", "its name or `inplace` is of another type")
    if plan["protocol"] != "Simple" or plan["collective"] not in ("allreduce", "allgather", "reducescatter"):
        raise _wrong("", f"{plan['collective']} with protocol {plan['protocol']} is not run here")
    gpus = plan["gpus"]
    joined: Counter[tuple[int, int]] = Counter()
    for number, gpu in enumerate(gpus):
        where = f"GPU {number}"
        if gpu["id"] != number:
            raise _wrong(where, f"its id is {gpu['id']}")
        if gpu["input_chunks"] < 1 or gpu["output_chunks"] < 1:
            raise _wrong(where, "no chunks of input or output")
        peers = _peers(gpu)
        if any(not 0 <= peer < len(gpus) or peer == number for peer in peers):
            raise _wrong(where, "a channel to no other GPU")
        joined.update((number, peer) for peer in peers)
        for remote in gpu["remote_buffers"]:
            if not 0 <= remote["rank"] < len(gpus) or remote["rank"] == number or remote["type"] not in _BUFFERS:
                raise _wrong(where, "a remote buffer that does not exist")
            if remote["access_channel_types"] != ["memory"]:
                raise _wrong(where, "only memory channels are run here")
        for place, block in enumerate(gpu["threadblocks"]):
            if block["id"] != place:
                raise _wrong(where, f"thread block {place} has the id {block['id']}")
            _check_block(gpus, gpu, block, f"{where}, thread block {place}")
    for (one, other), count in joined.items():
        if joined[other, one] != count:
            raise _wrong("", f"{count} channels from GPU {one} to {other} and {joined[other, one]} back")


def _peers(gpu: Json) -> list[int]:
    return [peer for channel in gpu["channels"] for peer in channel["connected_to"]]


def _own_channels(block: Json) -> list[int]:
    return [number for channels in block["channels"] for number in channels["channel_ids"]]


def _own_buffers(block: Json) -> list[int]:
    return [number for buffers in block["remote_buffer_refs"] for number in buffers["remote_buffer_ids"]]


def _check_block(gpus: Sequence[Json], gpu: Json, block: Json, where: str) -> None:
    flat = [inner for op in block["ops"] for inner in (op, *op.get("ops", ()))]
    channels, buffers = _own_channels(block), _own_buffers(block)
    if len(flat) > _MAX_OPERATIONS:
        raise _wrong(where, f"{len(flat)} operations, at most {_MAX_OPERATIONS} are possible")
    if len(channels) > _MAX_CHANNELS or len(buffers) > _MAX_CHANNELS:
        raise _wrong(where, f"more than {_MAX_CHANNELS} channels or buffers")
    if not all(0 <= number < len(_peers(gpu)) for number in channels):
        raise _wrong(where, "a channel that does not exist")
    if not all(0 <= number < len(gpu["remote_buffers"]) for number in buffers):
        raise _wrong(where, "a remote buffer that does not exist")
    for op in flat:
        for number in op.get("channel_ids", ()):
            if not 0 <= number < len(channels):
                raise _wrong(where, f"{op['name']} names channel {number} of {len(channels)}")
        if len(op.get("channel_ids", ())) > _PER_OPERATION:
            raise _wrong(where, f"{op['name']} with more than {_PER_OPERATION} channels")
        for buff in (*op.get("src_buff", ()), *op.get("dst_buff", ())):
            rank, kind = _place(gpu, block, buff)
            if not 0 <= buff["index"] < buff["index"] + buff["size"] <= gpus[rank][_BUFFERS[kind]]:
                raise _wrong(where, f"{op['name']} beyond the end of a buffer")
        _check_operation(op, where)
    _check_order(block, where)


def _check_operation(op: Json, where: str) -> None:
    name = op["name"]
    sources, targets = op.get("src_buff", ()), op.get("dst_buff", ())
    if name == "pipeline":
        if op["iter_context"]["unit_size"] % _UNIT or op["iter_context"]["unit_size"] < _UNIT or not op["ops"]:
            raise _wrong(where, "a pipeline whose units are no multiples of 16 bytes")
        sizes = {
            buff["size"] for inner in op["ops"] for buff in (*inner.get("src_buff", ()), *inner.get("dst_buff", ()))
        }
        if sizes - {op["iter_context"]["num_chunks"]}:
            raise _wrong(where, "a pipeline of chunks of several sizes")
    elif name not in (*_DATA, *_SIGNALS, *_WAITS, "nop"):
        raise _wrong(where, f"{name} is no operation that is run here")
    elif name in _DATA:
        remote = [("buffer_id" in buff) for buff in targets]
        if max(len(sources), len(targets)) > _LOCAL + _PER_OPERATION or any("buffer_id" in buff for buff in sources):
            raise _wrong(where, f"{name} reads too much, or from afar")
        if name == "put" and (len(sources) != len(targets) or not all(remote) or not sources):
            raise _wrong(where, "a put needs a source for each of its remote targets")
        # The kernel takes all sources of a put from the buffer of the first one.
        if name == "put" and len({buff["type"] for buff in sources}) != 1:
            raise _wrong(where, "a put from several buffers")
        if name != "put" and (not targets or remote[0] or not sources or all(remote) != (remote == [])):
            raise _wrong(where, f"{name} keeps its result on its own GPU")
        if any(remote) and op.get("channel_type") != "memory":
            raise _wrong(where, f"{name} to another GPU over no memory channel")
        if name in ("copy", "re") and len(targets) != 1:
            raise _wrong(where, f"{name} has one target")


def _check_order(block: Json, where: str) -> None:
    """Checks that a barrier (`nop`) separates waits and signals, which one thread does, from data that all move."""
    waited = moved = False
    # Each pipeline is checked twice in a row, because its start follows its end.
    for op in (inner for outer in block["ops"] for inner in (outer["ops"] * 2 if "ops" in outer else [outer])):
        if op["name"] in _WAITS:
            waited = True
        elif op["name"] in _DATA:
            if waited:
                raise _wrong(where, f"{op['name']} follows a wait without a nop between them")
            moved = True
        elif op["name"] in _SIGNALS and moved:
            raise _wrong(where, "a signal follows data without a nop between them")
        elif op["name"] == "nop":
            waited = moved = False


def _place(gpu: Json, block: Json, buff: Json) -> tuple[int, str]:
    """Returns the GPU and the kind of the buffer that an operation uses."""
    if "buffer_id" in buff:
        if not 0 <= buff["buffer_id"] < len(_own_buffers(block)):
            raise _wrong(f"GPU {gpu['id']}", f"buffer {buff['buffer_id']} of a block that has fewer")
        remote = gpu["remote_buffers"][_own_buffers(block)[buff["buffer_id"]]]
        return remote["rank"], remote["type"]
    return gpu["id"], buff["type"]


def prove_plan(plan: Json, collective: Collective) -> None:
    """Runs two calls in a row on random numbers and checks the results.

    Raises:
        IRError: a result is wrong.
    """
    nranks, numbers = len(plan["gpus"]), np.random.default_rng(1)
    size = plan["gpus"][0]["input_chunks"]
    calls = [[numbers.integers(0, 1 << 40, size) for _ in range(nranks)] for _ in range(2)]
    for inputs, outputs in zip(calls, run_plan(plan, 1, calls, 1), strict=True):
        for rank, (found, want) in enumerate(zip(outputs, expected(collective, inputs), strict=True)):
            if not np.array_equal(found, want):
                raise _wrong(f"GPU {rank}", f"its result is not that of {collective.value}")


def expected(collective: Collective, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the output of each rank."""
    nranks = len(inputs)
    if not collective.reduces:
        return [np.concatenate(inputs)] * nranks
    total = np.sum(inputs, axis=0)
    return [*np.split(total, nranks)] if collective.traits.input.per_rank else [total] * nranks


def run_plan(plan: Json, units: int, inputs: Sequence[Sequence[np.ndarray]], seed: int) -> list[list[np.ndarray]]:
    """Runs calls one after the other, and returns the output of every rank in every call.

    Args:
        units: the number of 16-byte units of a chunk.
        inputs: for each call and rank, an integer for every unit. In an in-place plan they share memory with outputs.
        seed: of the random order of the thread blocks.

    Raises:
        IRError: a deadlock, or signals are left over.
    """
    return _Machine(plan, units, random.Random(seed)).run(inputs)


class _Machine:
    def __init__(self, plan: Json, units: int, order: random.Random) -> None:
        self._plan, self._units, self._order = plan, units, order
        self._gpus = plan["gpus"]
        self._signals: Counter[tuple[int, int]] = Counter()
        self._ends: dict[tuple[int, int], tuple[int, int]] = {}
        places: dict[tuple[int, int], list[int]] = {}
        for gpu in self._gpus:
            for number, peer in enumerate(_peers(gpu)):
                places.setdefault((gpu["id"], peer), []).append(number)
        for (rank, peer), numbers in places.items():
            for mine, other in zip(numbers, places[peer, rank], strict=True):
                self._ends[rank, mine] = (peer, other)
        self._memory = [
            {k: np.zeros(gpu[chunks] * units, dtype=np.int64) for k, chunks in _BUFFERS.items()} for gpu in self._gpus
        ]

    def run(self, inputs: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
        results: list[list[np.ndarray]] = [[np.zeros(0)] * len(self._gpus) for _ in inputs]
        call = [-1] * len(self._gpus)
        running: dict[int, list[Iterator[bool]]] = {rank: [] for rank in range(len(self._gpus))}
        awake = self._some(running)
        while running:
            moved = False
            for rank in self._order.sample(sorted(awake), len(awake)):
                moved = self._step(running[rank]) or moved
                if running[rank]:
                    continue
                # The kernel has ended, and the next may begin at once.
                moved = True
                if call[rank] >= 0:
                    results[call[rank]][rank] = self._memory[rank]["o"].copy()
                call[rank] += 1
                if call[rank] == len(inputs):
                    del running[rank]
                    awake.remove(rank)
                    continue
                self._begin(rank, inputs[call[rank]][rank])
                running[rank] = [self._block(self._gpus[rank], b) for b in self._gpus[rank]["threadblocks"]]
            if not moved and awake == set(running):
                raise _wrong("", "its thread blocks wait for each other for ever")
            if not moved:
                # From time to time some GPUs pause while the others continue as far as they can.
                awake = set(running) if self._order.random() < 0.5 else self._some(running)
        if any(self._signals.values()):
            raise _wrong("", "signals are left over after a call")
        return results

    def _some(self, running: Iterable[int]) -> set[int]:
        return {rank for rank in running if self._order.random() < 0.5}

    def _step(self, blocks: list[Iterator[bool]]) -> bool:
        """Runs one operation of each thread block of a GPU, in random order. Returns whether a block made progress."""
        moved = False
        self._order.shuffle(blocks)
        for block in list(blocks):
            step = next(block, None)
            if step is None:
                blocks.remove(block)
            moved = moved or step is not False
        return moved

    def _begin(self, rank: int, values: np.ndarray) -> None:
        memory = self._memory[rank]
        if not self._plan["inplace"]:
            memory["i"][:] = values
            memory["o"][:] = -1
            return
        # The shorter buffer is the rank's part of the longer one.
        short, long = sorted("io", key=lambda kind: len(memory[kind]))
        at = rank * len(memory[short]) if len(memory[short]) < len(memory[long]) else 0
        memory[short] = memory[long][at : at + len(memory[short])]
        memory["i"][:] = values

    def _block(self, gpu: Json, block: Json) -> Iterator[bool]:
        """Runs a thread block. Yields after each attempt whether it made progress."""
        for op in block["ops"]:
            if op["name"] != "pipeline":
                yield from self._operation(gpu, block, op, 0, 1 << 62)
                continue
            unit = op["iter_context"]["unit_size"] // _UNIT
            rounds = -(-op["iter_context"]["num_chunks"] * self._units // unit)
            if rounds > _MAX_ITERATIONS:
                raise _wrong(f"GPU {gpu['id']}", f"a pipeline of {rounds} rounds, more than 16 bits count")
            for i in range(rounds):
                for inner in op["ops"]:
                    yield from self._operation(gpu, block, inner, i * unit, unit)

    def _operation(self, gpu: Json, block: Json, op: Json, offset: int, most: int) -> Iterator[bool]:
        name = op["name"]
        channels = [(gpu["id"], _own_channels(block)[i]) for i in op.get("channel_ids", ())]
        if name in _SIGNALS:
            self._signals.update(self._ends[channel] for channel in channels)
        elif name in _WAITS:
            while not all(self._signals[channel] for channel in channels):
                yield False
            self._signals.subtract(channels)
        elif name in _DATA:
            sources = [self._part(gpu, block, buff, offset, most) for buff in op["src_buff"]]
            targets = [self._part(gpu, block, buff, offset, most) for buff in op["dst_buff"]]
            if name in ("re", "res"):
                sources = [np.sum(sources, axis=0)] * len(targets)
            for source, target in zip(sources, targets, strict=True):
                target[:] = source
        yield True

    def _part(self, gpu: Json, block: Json, buff: Json, offset: int, most: int) -> np.ndarray:
        rank, kind = _place(gpu, block, buff)
        first = buff["index"] * self._units + offset
        return self._memory[rank][kind][first : first + min(buff["size"] * self._units - offset, most)]
