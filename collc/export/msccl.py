"""MSCCL's algorithms: a plan's trees as the XML that MSCCL's NCCL reads (MSCCL_XML_FILES).

A thread block of MSCCL receives from one GPU and sends to one other, so a rank with several children in a tree has a
block for each; blocks of a rank wait for each other's steps. Partial sums of several children are kept in the output,
which the result reaches last. Two blocks of a GPU on one channel must not have the same peer in the same direction, so
every phase of a tree gets the first channel on which its hops are free.

Source: microsoft/msccl, src/graph/topo.cc (mscclGetAlgoFromXMLAndSetAlgo), src/include/msccl.h (the limits) and
src/collectives/device/msccl_interpreter.h. The format is no longer developed; MSCCL++'s plans are (`mscclpp`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from collc.collectives.model import Collective
from collc.errors import PackingError
from collc.export.parts import Part, Parts
from collc.packing.model import Hop

# Its names of what is written here.
_TITLES = {"AllReduce": "allreduce", "AllGather": "allgather", "ReduceScatter": "reduce_scatter"}
NAMES = {c: _TITLES[c.traits.title] for c in Collective if c.traits.title in _TITLES}
MAX_CHANNELS, MAX_BLOCKS, MAX_STEPS, MAX_COUNT = 32, 127, 256, 71
MAX_CHUNKS = (1 << 15) - 1  # offsets have 16 bits
_PEER_BLOCKS = 32  # of one channel that send, and as many that receive


@dataclass
class _Step:
    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    after: _Block | None = None


@dataclass
class _Block:
    """A thread block that runs one step over the chunks of a tree, in pieces that a step can count."""

    rank: int
    number: int
    channel: int
    count: int
    receives: int = -1
    sends: int = -1
    steps: list[_Step] = field(default_factory=list)
    awaited: bool = False

    def xml(self) -> list[str]:
        """The lines of this block."""
        lines = [f'  <tb id="{self.number}" send="{self.sends}" recv="{self.receives}" chan="{self.channel}">']
        number = 0
        for step in self.steps:
            for at in range(0, self.count, MAX_COUNT):
                (source, i), (target, o) = step.source, step.target
                # Blocks that wait for each other have pieces of the same chunks at the same places.
                block, place = (step.after.number, number) if step.after else (-1, -1)
                lines.append(
                    f'   <step s="{number}" type="{step.kind}" srcbuf="{source}" srcoff="{i + at}" dstbuf="{target}" '
                    f'dstoff="{o + at}" cnt="{min(MAX_COUNT, self.count - at)}" depid="{block}" deps="{place}" '
                    f'hasdep="{int(self.awaited)}"/>'
                )
                number += 1
        if number > MAX_STEPS:
            raise PackingError(f"{number} steps of a thread block; MSCCL has {MAX_STEPS}", hint="take fewer --chunks")
        return [*lines, "  </tb>"]


class _Writer:
    def __init__(self, collective: Collective, nranks: int, cut: Parts, in_place: bool) -> None:
        self._item, self._cut, self._in_place = collective, cut, in_place
        self.blocks: list[list[_Block]] = [[] for _ in range(nranks)]
        self._used: list[set[tuple[int, int]]] = []
        for part in cut.parts:
            self._tree(part)

    @property
    def channels(self) -> int:
        """How many there are."""
        return len(self._used)

    def _channel(self, hops: Sequence[Hop]) -> int:
        """The first channel on which no other block has these hops."""
        pairs = {(hop.src, hop.dst) for hop in hops}
        for number, used in enumerate(self._used):
            if not used & pairs:
                used |= pairs
                return number
        self._used.append(pairs)
        return len(self._used) - 1

    def _block(self, rank: int, channel: int, part: Part) -> _Block:
        own = self.blocks[rank]
        own.append(_Block(rank, len(own), channel, part.count))
        return own[-1]

    def _tree(self, part: Part) -> None:
        traits, first = self._item.traits, part.block * self._cut.chunks
        source = ("i", part.first + (first if traits.input.per_rank else 0))
        result = ("o", part.first + (first if traits.output.per_rank else 0))
        last = self._reduce(part, source, result) if part.tree.reduce else None
        if part.tree.broadcast:
            self._broadcast(part, source, result, last)

    def _reduce(self, part: Part, source: tuple[str, int], result: tuple[str, int]) -> _Block:
        """The blocks of the reduction; returns the one after which the root has the sum."""
        channel = self._channel(part.tree.reduce)
        above: dict[int, list[int]] = defaultdict(list)
        parent = {hop.src: hop.dst for hop in part.tree.reduce}
        for hop in part.tree.reduce:
            above[hop.dst].append(hop.src)
        last: _Block | None = None
        for rank in (*parent, part.tree.root):
            # Where a rank that passes the sum on keeps it meanwhile.
            kept = result if self._item.traits.spreads or rank == part.tree.root else self._scratch(part)
            before: _Block | None = None
            for number, child in enumerate(above[rank]):
                block = self._block(rank, channel, part)
                block.receives = child
                passes = rank in parent and number == len(above[rank]) - 1
                block.steps.append(_Step("rrs" if passes else "rrc", kept if before else source, kept, before))
                if before:
                    before.awaited = True
                if passes:
                    block.sends = parent[rank]
                before = block
            if rank in parent and not above[rank]:
                block = self._block(rank, channel, part)
                block.sends = parent[rank]
                block.steps.append(_Step("s", source, source))
            last = before
        assert last is not None
        return last

    def _scratch(self, part: Part) -> tuple[str, int]:
        """Scratch of a part: ranks that pass sums of another's block have no output for them."""
        return ("s", part.block * self._cut.chunks + part.first)

    def _broadcast(self, part: Part, source: tuple[str, int], result: tuple[str, int], last: _Block | None) -> None:
        channel = self._channel(part.tree.broadcast)
        below: dict[int, list[int]] = defaultdict(list)
        for hop in part.tree.broadcast:
            below[hop.src].append(hop.dst)
        root = part.tree.root
        for child in below[root]:
            block = self._block(root, channel, part)
            block.sends = child
            block.steps.append(_Step("s", result if last else source, result, last))
            if last:
                last.awaited = True
        if last is None and not self._in_place:
            self._block(root, channel, part).steps.append(_Step("cpy", source, result))
        for hop in part.tree.broadcast:
            children = below[hop.dst]
            got = self._block(hop.dst, channel, part)
            got.receives = hop.src
            got.sends = children[0] if children else -1
            got.steps.append(_Step("rcs" if children else "r", result, result))
            for child in children[1:]:
                block = self._block(hop.dst, channel, part)
                block.sends = child
                block.steps.append(_Step("s", result, result, got))
                got.awaited = True


def write_algorithm(name: str, collective: Collective, nranks: int, cut: Parts, *, in_place: bool = False) -> str:
    """The XML of one collective.

    Raises:
        PackingError: the trees need more channels, thread blocks or steps than MSCCL has.
    """
    made = _Writer(collective, nranks, cut, in_place)
    if made.channels > MAX_CHANNELS:
        raise PackingError(f"the trees need {made.channels} channels; MSCCL has {MAX_CHANNELS}")
    k, traits = cut.chunks, collective.traits
    inputs = k * nranks if traits.input.per_rank else k
    outputs = k * nranks if traits.output.per_rank else k
    if max(inputs, outputs) > MAX_CHUNKS:
        raise PackingError(f"{max(inputs, outputs)} chunks; MSCCL has {MAX_CHUNKS}", hint="take fewer --chunks")
    scratch = inputs if collective.reduces and not traits.spreads else 0
    lines = [
        f'<algo name="{name}" proto="Simple" nchannels="{made.channels}" nchunksperloop="{max(inputs, outputs)}" '
        f'ngpus="{nranks}" coll="{NAMES[collective]}" inplace="{int(in_place)}" minBytes="0" maxBytes="{1 << 40}">'
    ]
    for rank, blocks in enumerate(made.blocks):
        if len(blocks) > MAX_BLOCKS:
            raise PackingError(f"rank {rank} needs {len(blocks)} thread blocks; MSCCL has {MAX_BLOCKS}")
        for channel in range(made.channels):
            own = [block for block in blocks if block.channel == channel]
            many = max(sum(block.sends >= 0 for block in own), sum(block.receives >= 0 for block in own))
            if many > _PEER_BLOCKS:
                raise PackingError(f"rank {rank} needs {many} peers on a channel; MSCCL has {_PEER_BLOCKS}")
        lines.append(f' <gpu id="{rank}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{scratch}">')
        lines += [line for block in blocks for line in block.xml()]
        lines.append(" </gpu>")
    return "\n".join([*lines, "</algo>"]) + "\n"
