"""Writes plans as MSCCL++'s execution plans, the JSON that its executor loads.

Every hop puts chunks directly into the other GPU's memory and signals. The chunks of a tree are one range of the
buffer, which moves through the tree in units, one after the other (`pipeline`). Broadcasts write outputs. Reductions
write scratch chunks of the parent, one range for each child. A tree has one thread block per rank and phase, but the
root of a tree with both phases has only one. Before its first put, a block waits for a signal that the kernel of the
receiving block has begun, so calls may follow each other.

Source: microsoft/mscclpp, src/core/executor/execution_plan.cc, src/core/include/execution_common.hpp and
execution_kernel.hpp, python/mscclpp/language. `collc.export.mscclpp_run` has the rules that matter here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.export.parts import Part, Parts

# MSCCL++'s names of the supported collectives.
_TITLES = ("AllReduce", "AllGather", "ReduceScatter")
NAMES = {c: c.traits.title.lower() for c in Collective if c.traits.title in _TITLES}
ALIGNMENT = 16
# The size of a unit of a pipeline. A link needs a few microseconds for it.
UNIT_BYTES = 1 << 17
PER_OPERATION, PER_BLOCK = 8, 16  # the most channels of an operation and of a thread block
_BYTES = 1 << 32  # the end of 32-bit offsets
_NOP = {"name": "nop"}

Op = dict[str, Any]


@dataclass
class _Block:
    """A thread block. Channels and buffers have numbers of the GPU, and operations use indices of these lists."""

    gpu: _Gpu
    count: int  # the number of chunks of its tree
    channels: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)  # the channels that other blocks send to this block over
    awaited: list[int] = field(default_factory=list)  # the channels that this block sends over
    inner: list[Op] = field(default_factory=list)
    before: list[Op] = field(default_factory=list)

    def remote(self, rank: int, kind: str) -> int:
        """Returns the index of a rank's buffer in this block's list, and adds it if needed."""
        number = self.gpu.remote.setdefault((rank, kind), len(self.gpu.remote))
        if number not in self.buffers:
            self.buffers.append(number)
        return self.buffers.index(number)


@dataclass
class _Gpu:
    rank: int
    blocks: list[_Block] = field(default_factory=list)
    peers: list[int] = field(default_factory=list)  # the other rank of each channel
    remote: dict[tuple[int, str], int] = field(default_factory=dict)
    scratch: int = 0

    def block(self, count: int) -> _Block:
        self.blocks.append(_Block(self, count))
        return self.blocks[-1]

    def slot(self, count: int) -> int:
        """Reserves `count` scratch chunks and returns the first one."""
        self.scratch += count
        return self.scratch - count


def _join(sender: _Block, receiver: _Block) -> int:
    """Makes a channel between two blocks, and returns its index in the sender's list.

    The n-th channel from a rank to another one is paired with the n-th channel in the other direction.
    """
    for one, other in ((sender, receiver), (receiver, sender)):
        one.channels.append(len(one.gpu.peers))
        one.gpu.peers.append(other.gpu.rank)
    receiver.ready.append(len(receiver.channels) - 1)
    sender.awaited.append(len(sender.channels) - 1)
    return len(sender.channels) - 1


def _groups(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[i : i + PER_OPERATION] for i in range(0, len(items), PER_OPERATION))


def _sync(name: str, channels: Sequence[int]) -> list[Op]:
    return [{"name": name, "channel_ids": list(ids), "channel_type": "memory"} for ids in _groups(channels)]


def _local(kind: str, at: int, count: int) -> Op:
    return {"type": kind, "index": at, "size": count}


class _Writer:
    def __init__(self, collective: Collective, nranks: int, cut: Parts, in_place: bool) -> None:
        self._item, self._n, self._cut, self._in_place = collective, nranks, cut, in_place
        self.gpus = [_Gpu(rank) for rank in range(nranks)]
        for part in cut.parts:
            self._tree(part)

    def _input(self, part: Part) -> int:
        whole = self._item.traits.input.per_rank
        return part.first + (part.block * self._cut.chunks if whole else 0)

    def _output(self, part: Part) -> int:
        whole = self._item.traits.output.per_rank
        return part.first + (part.block * self._cut.chunks if whole else 0)

    def _tree(self, part: Part) -> None:
        tree, count = part.tree, part.count
        top = self.gpus[tree.root].block(count)
        above: dict[int, list[int]] = defaultdict(list)
        for hop in tree.reduce:
            above[hop.dst].append(hop.src)
        below: dict[int, list[int]] = defaultdict(list)
        for hop in tree.broadcast:
            below[hop.src].append(hop.dst)
        downs = {tree.root: top} | {hop.dst: self.gpus[hop.dst].block(count) for hop in tree.broadcast}
        ups = {tree.root: top} | {hop.src: self.gpus[hop.src].block(count) for hop in tree.reduce}
        slots = {(hop.src, hop.dst): self.gpus[hop.dst].slot(count) for hop in tree.reduce}
        ways = {(hop.src, hop.dst): _join(ups[hop.src], ups[hop.dst]) for hop in tree.reduce}
        down_ways = {(hop.src, hop.dst): _join(downs[hop.src], downs[hop.dst]) for hop in tree.broadcast}
        for hop in tree.reduce:
            child, parent = hop.src, hop.dst
            block = ups[child]
            target = {"buffer_id": block.remote(parent, "s"), "index": slots[child, parent], "size": count}
            own = [_local("s", slots[below_it, child], count) for below_it in above[child]]
            self._combine(block, part, own, own[0] if own else None, [target], [ways[child, parent]])
        where = self._output(part)
        for rank, block in downs.items():
            sends = [down_ways[rank, child] for child in below[rank]]
            targets = [{"buffer_id": block.remote(c, "o"), "index": where, "size": count} for c in below[rank]]
            if block is top and tree.reduce:
                own = [_local("s", slots[child, rank], count) for child in above[rank]]
                self._combine(top, part, own, _local("o", where, count), targets, sends)
            elif block is top:
                source = _local("i", self._input(part), count)
                if not self._in_place:
                    copy = {"name": "copy", "src_buff": [source], "dst_buff": [_local("o", where, count)]}
                    block.before.append(copy)
                self._put(block, source, targets, sends)
            else:
                block.inner += _sync("wait", block.ready)
                if sends:
                    block.inner.append(_NOP)
                    self._put(block, _local("o", where, count), targets, sends)

    def _combine(
        self, block: _Block, part: Part, own: list[Op], sum_at: Op | None, targets: list[Op], sends: list[int]
    ) -> None:
        """Appends operations that add the children's chunks to the rank's input, store the sum at `sum_at` and send it.

        Without `sum_at` there are no children, and the input is sent.
        """
        first = _local("i", self._input(part), part.count)
        if sum_at is None:
            self._put(block, first, targets, sends)
            return
        block.inner += [*_sync("wait", block.ready), _NOP]
        groups = list(_groups(own))
        for number, group in enumerate(groups):
            last = number == len(groups) - 1
            now = targets[:PER_OPERATION] if last else []
            op: Op = {"name": "res" if now else "re", "src_buff": [sum_at if number else first, *group]}
            op |= {"dst_buff": [sum_at, *now], "reduce_op": "sum"} | ({"channel_type": "memory"} if now else {})
            block.inner.append(op)
            if not last or len(targets) > PER_OPERATION:
                block.inner.append(_NOP)
        if targets[PER_OPERATION:]:
            self._put(block, sum_at, targets[PER_OPERATION:], sends)
        elif sends:
            block.inner += [_NOP, *_sync("signal", sends)]

    def _put(self, block: _Block, source: Op, targets: list[Op], sends: list[int]) -> None:
        for group in _groups(targets):
            put = {"name": "put", "src_buff": [source] * len(group), "dst_buff": list(group), "channel_type": "memory"}
            block.inner.append(put)
        block.inner += [_NOP, *_sync("signal", sends)]

    def block_json(self, number: int, block: _Block, unit_bytes: int) -> Op:
        """Returns a thread block as JSON for the executor.

        Raises:
            PackingError: it needs more channels than MSCCL++ has.
        """
        if len(block.channels) > PER_BLOCK or len(block.buffers) > PER_BLOCK:
            what = f"a block of rank {block.gpu.rank} needs {len(block.channels)} channels; MSCCL++ has {PER_BLOCK}"
            raise PackingError(what, hint="its trees have too many children: choose fewer GPUs with --gpus")
        begin = [*_sync("rlxsignal", block.ready), *_sync("rlxwait", block.awaited)]
        begin += [_NOP] if block.awaited else []
        loop = {"unit_size": unit_bytes, "num_chunks": block.count}
        buffers = {"access_channel_type": "memory", "remote_buffer_ids": block.buffers}
        return {
            "id": number,
            "ops": [*begin, *block.before, {"name": "pipeline", "iter_context": loop, "ops": block.inner}],
            "channels": [{"channel_type": "memory", "channel_ids": block.channels}],
            "remote_buffer_refs": [buffers] if block.buffers else [],
        }


def write_plan(
    name: str, collective: Collective, nranks: int, cut: Parts, *, in_place: bool = False, unit_bytes: int = UNIT_BYTES
) -> str:
    """Returns the text of the execution plan of one collective.

    Args:
        cut: the chunks of each tree.
        in_place: the plan is for calls whose input and output share memory (for all_gather and reduce_scatter, one is
            a part of the other). A plan is either for such calls or for the others.
        unit_bytes: the size of a unit of the pipelines.

    Raises:
        PackingError: a rank has more neighbors in a tree than a thread block of MSCCL++ has channels.
    """
    made = _Writer(collective, nranks, cut, in_place)
    k = cut.chunks
    inputs = k * nranks if collective.traits.input.per_rank else k
    outputs = k * nranks if collective.traits.output.per_rank else k
    gpus = []
    for gpu in made.gpus:
        blocks = [made.block_json(number, block, unit_bytes) for number, block in enumerate(gpu.blocks)]
        remote = sorted(gpu.remote, key=gpu.remote.__getitem__)
        gpus.append(
            {
                "id": gpu.rank,
                "input_chunks": inputs,
                "output_chunks": outputs,
                "scratch_chunks": gpu.scratch,
                "threadblocks": blocks,
                "channels": [{"channel_type": "memory", "connected_to": gpu.peers}],
                "remote_buffers": [
                    {"rank": rank, "type": kind, "access_channel_types": ["memory"]} for rank, kind in remote
                ],
                "semaphores": [],
            }
        )
    most = max(inputs, outputs, *(gpu.scratch for gpu in made.gpus))
    message = max(inputs, outputs)
    plan = {
        "name": name,
        "collective": NAMES[collective],
        "protocol": "Simple",
        "inplace": in_place,
        "reuse_resources": False,
        "gpus": gpus,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT,
        "min_message_size": message * ALIGNMENT,
        "max_message_size": message * ((_BYTES - 1) // most // ALIGNMENT * ALIGNMENT),
    }
    return json.dumps(plan, indent=1) + "\n"
