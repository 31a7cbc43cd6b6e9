"""The IR: every node, frozen, checked on construction.

A `Program` is one collective over `nranks` ranks. Its data are *blocks* (see `BlockLayout`): a block of `count`
elements is cut into *shares* by exact fractions, and each share is processed in chunks of at most `chunk_bytes`. A
*channel* is a loop over iterations; in iteration i a rank runs the channel's steps in order, each on chunk
``i - step.lag`` of the step's share (nothing happens where that chunk does not exist). The lag is what
pipelines the phases of a tree: a rank forwards chunk k of the reduction while it hands down chunk k - lag of the
result.

A *FIFO* carries one share from one step of its source rank to one step of each of its destination ranks, in chunk
order, through a fixed number of slots of `chunk_bytes`. A source may write a slot again only after every destination
has read it.

Shares may take turns in one FIFO, one chunk of each and then the next of each: so many FIFOs of the IR (`Fifo.turns`)
then have the same slots, and chunk k of the one with turn t is number ``k * turns + t`` of all that goes through these.
So their shares are the same part of their blocks, and both ends do their steps in the order of the turns.

Where a switch can copy and add (NVLS), FIFOs may go `through` it. Those of one step belong together, one for every
rank, its own included: a step that receives from FIFOs of `Through.SUM` gets their chunks as one value, added up by the
switch in an order of its own; a step that sends into FIFOs of `Through.COPY` stores its value once, and the switch
writes it into the slots of all ranks. Their slots lie at one offset in the memories of all ranks.

A program may serve several classes of links (nvlink, pcie, net). Each call then cuts every block into one part per
class, in the order of the classes and by the weights of the call, and a class's shares cut its part. `Program.weights`
are those of calls that say nothing else.

The interpreter (`collc.ir.interpret`) is the definition of what a program means; `collc.checker.programs` proves that
it computes its collective and cannot deadlock.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import IRError
from collc.topology.model import JOINT, LinkKind

# What a step is called: (reads own input, receives, writes output, sends) -> NCCL's primitive.
_NAMES: dict[tuple[bool, bool, bool, bool], str] = {
    (True, False, False, True): "send",
    (False, True, True, False): "recv",
    (False, True, False, True): "recvSend",
    (True, False, True, False): "copy",
    (True, False, True, True): "copySend",
    (False, True, True, True): "recvCopySend",
    (True, True, False, True): "recvReduceSend",
    (True, True, True, False): "recvReduceCopy",
    (True, True, True, True): "recvReduceCopySend",
}
SHAPES: dict[str, tuple[bool, bool, bool, bool]] = {name: shape for shape, name in _NAMES.items()}

MAX_RANKS = 4096
MAX_SLOTS = 64
MAX_INPUT_AT = 255  # the step tables give it a byte
MAX_CHUNK_BYTES = 1 << 30
MAX_DENOMINATOR = 1 << 30  # of a share's two boundaries together; the runtime cuts with 64-bit integers
MAX_WEIGHT = 255  # of a class; the step tables give it a byte


@dataclass(frozen=True, slots=True)
class Share:
    """The part [lo, hi) of a block, as fractions of the block's elements.

    In a program of several classes they are fractions of what the class `JOINT[part]` carries of the block.
    """

    block: int
    lo: Fraction
    hi: Fraction
    part: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.lo < self.hi <= 1:
            raise IRError(f"a share must be a non-empty part of its block, not [{self.lo}, {self.hi})")
        if self.denominator > MAX_DENOMINATOR:
            raise IRError(f"the boundaries of [{self.lo}, {self.hi}) need a denominator above {MAX_DENOMINATOR}")
        if self.block < 0:
            raise IRError(f"a share's block cannot be {self.block}")
        if not 0 <= self.part < len(JOINT):
            raise IRError(f"no class has the number {self.part}")

    @property
    def denominator(self) -> int:
        """The smallest that both boundaries have in common."""
        return math.lcm(self.lo.denominator, self.hi.denominator)


class Through(enum.Enum):
    """What the switch does with the FIFOs of a step: `SUM`: the reader gets one sum; `COPY`: the writer stores once."""

    SUM = "sum"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Fifo:
    """A queue of slots from rank `src` to ranks `dsts` for one share.

    With several destinations each slot is written once and read by all. `routes` are the links on the way to each
    destination, by their ids in the plan's graph, and `link` is the class of the slowest of them. Both are absent where
    a program was made without a graph.

    `index` tells apart the FIFOs of one program that join the same ranks over the same routes; FIFOs of two programs
    with the same `memory` share their slots.

    `through` is set where a switch copies or adds; such a FIFO may lead to its own source, and those of one step have
    one index.

    `turn` tells apart those that share slots within a program: the `turns` FIFOs of one `memory`.
    """

    src: int
    dsts: tuple[int, ...]
    share: int
    index: int = 0
    routes: tuple[tuple[int, ...], ...] = ()
    link: LinkKind | None = None
    through: Through | None = None
    turn: int = 0
    turns: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.turn < self.turns <= MAX_RANKS:
            raise IRError(f"a FIFO has one of its {self.turns} turns, not turn {self.turn}")
        if self.through is not None and len(self.dsts) != 1:
            raise IRError(f"a FIFO through a switch has one reader, not {list(self.dsts)}")
        if not self.dsts or (self.src in self.dsts and self.through is None) or len(set(self.dsts)) != len(self.dsts):
            raise IRError(f"a FIFO must go from one rank to other, distinct ranks, not {self.src} -> {list(self.dsts)}")
        if self.routes and (len(self.routes) != len(self.dsts) or not all(self.routes)):
            raise IRError(f"a FIFO to {len(self.dsts)} ranks has a route to each, not {len(self.routes)}")
        if bool(self.routes) != (self.link is not None):
            raise IRError("a FIFO has its routes and their class, or neither")

    @property
    def memory(self) -> tuple[int, tuple[int, ...], tuple[tuple[int, ...], ...], int, Through | None, int]:
        """What names its slots: source, destinations, routes, index, what a switch does with them, and their turns."""
        return (self.src, self.dsts, self.routes, self.index, self.through, self.turns)

    @property
    def place(self) -> tuple[object, ...]:
        """What tells it apart from a program's others: its slots, and its turn there."""
        return (*self.memory, self.turn)


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive of one rank: combine own input and received chunks, then store and send the result.

    `recv` and `send` are FIFO ids. The value is own input (if `input`) and the received chunks, reduced in the order of
    `recv` with the own input after the first `input_at` of them; it goes to the output (if `output`) and into every
    FIFO of `send`.
    """

    share: int
    lag: int
    input: bool
    recv: tuple[int, ...]
    output: bool
    send: tuple[int, ...]
    input_at: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.input_at <= min(len(self.recv), MAX_INPUT_AT) or (self.input_at and not self.input):
            raise IRError(f"a step with {len(self.recv)} receives has no own input after {self.input_at} of them")
        if self.shape not in _NAMES:
            raise IRError(f"no primitive has the shape (input, recv, output, send) = {self.shape}")
        if self.lag < 0:
            raise IRError(f"a step's lag cannot be {self.lag}")
        if len({*self.recv, *self.send}) != len(self.recv) + len(self.send):
            raise IRError(f"{self.name} names a FIFO twice")

    @property
    def shape(self) -> tuple[bool, bool, bool, bool]:
        """(reads own input, receives, writes output, sends)."""
        return (self.input, bool(self.recv), self.output, bool(self.send))

    @property
    def name(self) -> str:
        """NCCL's name of the primitive."""
        return _NAMES[self.shape]

    @property
    def reduces(self) -> bool:
        """Whether it combines several values."""
        return self.input and bool(self.recv)


@dataclass(frozen=True, slots=True)
class Channel:
    """One loop. `steps[r]` is what rank r runs in each iteration."""

    steps: tuple[tuple[Step, ...], ...]


def check_weights(weights: tuple[int, ...]) -> None:
    """Raises IRError unless these are weights: one number per class of `JOINT`, not all of them 0."""
    if len(weights) != len(JOINT) or not all(0 <= weight <= MAX_WEIGHT for weight in weights) or not any(weights):
        wanted = f"{len(JOINT)} numbers from 0 to {MAX_WEIGHT}, not all 0"
        raise IRError(f"the weights of {', '.join(JOINT)} are {wanted}, not {list(weights)}")


@dataclass(frozen=True)
class Program:
    """A whole collective. Ids of shares, FIFOs and channels are their places in the tuples.

    `servers` is the number of each rank's server; empty: all ranks are on one. `weights` has one number per class of
    `JOINT`, 0 where the program has no share of it; empty: the program is not cut into classes.
    """

    collective: Collective
    root: int | None
    nranks: int
    slots: int
    chunk_bytes: int
    shares: tuple[Share, ...]
    fifos: tuple[Fifo, ...]
    channels: tuple[Channel, ...]
    servers: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.nranks <= MAX_RANKS:
            raise IRError(f"a program has 1 to {MAX_RANKS} ranks, not {self.nranks}")
        if not 1 <= self.slots <= MAX_SLOTS:
            raise IRError(f"a FIFO has 1 to {MAX_SLOTS} slots, not {self.slots}")
        if not 16 <= self.chunk_bytes <= MAX_CHUNK_BYTES or self.chunk_bytes % 16:
            raise IRError(f"chunk_bytes must be a multiple of 16 up to {MAX_CHUNK_BYTES}, not {self.chunk_bytes}")
        if self.collective.rooted != (self.root is not None):
            raise IRError(f"{self.collective.value} {'needs a' if self.collective.rooted else 'has no'} root")
        if self.root is not None and not 0 <= self.root < self.nranks:
            raise IRError(f"root {self.root} is not a rank of 0..{self.nranks - 1}")
        if self.servers and len(self.servers) != self.nranks:
            raise IRError(f"{len(self.servers)} ranks have a server, not {self.nranks}")
        if self.weights:
            check_weights(self.weights)
        self._check_references()

    def server(self, rank: int) -> int:
        """The number of a rank's server."""
        return self.servers[rank] if self.servers else 0

    @property
    def takes_turns(self) -> bool:
        """Whether shares take turns in FIFOs."""
        return any(fifo.turns > 1 for fifo in self.fifos)

    @property
    def own_behind(self) -> list[Step]:
        """The steps that reduce the rank's own input behind what comes from others."""
        return [s for channel in self.channels for steps in channel.steps for s in steps if s.input_at]

    def _check_references(self) -> None:
        for i, fifo in enumerate(self.fifos):
            if not all(0 <= r < self.nranks for r in (fifo.src, *fifo.dsts)):
                raise IRError("names a rank that does not exist", where=f"fifo {i}")
            if not 0 <= fifo.share < len(self.shares):
                raise IRError(f"names share {fifo.share}, which does not exist", where=f"fifo {i}")
        for c, channel in enumerate(self.channels):
            if len(channel.steps) != self.nranks:
                raise IRError(f"has steps for {len(channel.steps)} ranks, not {self.nranks}", where=f"channel {c}")
            for r, steps in enumerate(channel.steps):
                for s, step in enumerate(steps):
                    wrong = []
                    if not 0 <= step.share < len(self.shares):
                        wrong.append(f"share {step.share}")
                    wrong += [f"FIFO {f}" for f in (*step.recv, *step.send) if not 0 <= f < len(self.fifos)]
                    where = f"channel {c}, rank {r}, step {s} ({step.name})"
                    if wrong:
                        raise IRError(f"names {wrong[0]}, which does not exist", where=where)
                    if len(step.recv) > 1 and not step.input and not self.sums_in_switch(step):
                        raise IRError(f"receives from one FIFO, not {len(step.recv)}", where=where)

    def sums_in_switch(self, step: Step) -> bool:
        """Whether a switch adds up what the step receives: it is one value, read once."""
        return bool(step.recv) and self.fifos[step.recv[0]].through is Through.SUM

    def copies_in_switch(self, step: Step) -> bool:
        """Whether a switch copies what the step sends: it is stored once."""
        return bool(step.send) and self.fifos[step.send[0]].through is Through.COPY

    def touches(self, step: Step) -> int:
        """How often the block of a step reads or writes each byte: its input and what it receives, its output and every
        FIFO that it sends into. A sum of the switch is read once, and what it copies is written once."""
        reads = 1 if self.sums_in_switch(step) else len(step.recv)
        writes = 1 if self.copies_in_switch(step) else len(step.send)
        return reads + step.input + step.output + writes

    @property
    def in_switch(self) -> bool:
        """Whether a switch adds up or copies for some of its steps."""
        return any(fifo.through is not None for fifo in self.fifos)

    @property
    def lags(self) -> int:
        """The lags of all steps together: a figure to compare programs by that differ in nothing else."""
        return sum(step.lag for channel in self.channels for steps in channel.steps for step in steps)

    def replace(self, **changes: object) -> Program:
        """A copy with some fields changed; checked again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def slots_by_memory(programs: Iterable[Program]) -> dict[object, int]:
    """By the `memory` of FIFOs that programs share, the most slots that one of these needs."""
    found: dict[object, int] = {}
    # Programs that differ in chunks alone have the same FIFOs.
    for program in {(id(program.fifos), program.slots): program for program in programs}.values():
        found.update({fifo.memory: max(program.slots, found.get(fifo.memory, 0)) for fifo in program.fifos})
    return found
