"""The IR. Its nodes are frozen and check their local rules on construction; `collc.checker.programs` checks the rest.

A `Program` implements one collective over `nranks` ranks.

- The data of a rank consist of *blocks* (`collc.collectives.blocks`). A block has `count` elements. A *share* is a
  part of a block, given by two exact fractions. Each share is processed in *chunks* of at most `chunk_bytes`.
- A *channel* is a loop. In iteration i a rank runs the channel's steps in order. A step processes chunk
  ``i - step.lag`` of its share, and does nothing if that chunk does not exist. Steps with different lags work on
  different chunks in one iteration: if the reduction step of a tree has lag a and its broadcast step has lag b, a rank
  reduces chunk i - a and broadcasts chunk i - b. `collc.lowering.pipeline_hops` chooses the lags of all hops.
- A *FIFO* carries one share from one step of its source rank to one step of each destination rank, in the order of the
  chunks, through a fixed number of slots of `chunk_bytes`. The source may overwrite a slot only after every
  destination has read it.
- *Interleaved* FIFOs share their slots: `Fifo.turns` FIFOs send one chunk each in the order of their `turn`, then the
  next chunk each. Chunk k of the FIFO with turn t is item ``k * turns + t`` of their common queue. So their shares must
  have the same `lo`, `hi` and `part`, and both ends must run their steps in the order of the turns.
- A switch that copies and adds (NVLS) can take part. A step that receives a sum has one FIFO with `Through.SUM` from
  every rank, including its own rank: it gets one value, which the switch has added up in an unknown order. A step that
  sends a copy has one FIFO with `Through.COPY` to every rank, including its own rank: it stores its value once, and the
  switch writes it into the slots of all ranks. The FIFOs of such a group have the same `index`, and their slots have
  the same offset in the memory of every rank.
- A *multi-path* program uses several path classes (nvlink, pcie, net). Each call cuts every block into one part per
  class, in the order of `JOINT` and in proportion to the weights of the call. The shares of a class are fractions of
  its part. `Program.weights` are the weights of calls that name none.

The interpreter (`collc.ir.interpret`) defines what a program means. `collc.checker.programs` proves that a program
computes its collective and cannot deadlock.
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

# (reads the input, receives, writes the output, sends) -> NCCL's name of the primitive; `copy` is our word.
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
MAX_INPUT_AT = 255  # one byte in the step tables
MAX_CHUNK_BYTES = 1 << 30
MAX_DENOMINATOR = 1 << 30  # common denominator of a share's two boundaries: the runtime cuts with 64-bit integers
MAX_WEIGHT = 255  # of one path class: one byte in the step tables


@dataclass(frozen=True, slots=True)
class Share:
    """The part [lo, hi) of a block, as fractions of the block's elements.

    In a multi-path program, `lo` and `hi` are fractions of the part of the block that path class `JOINT[part]` carries.
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
        """The least common denominator of both boundaries."""
        return math.lcm(self.lo.denominator, self.hi.denominator)


class Through(enum.Enum):
    """The operation of a switch on the FIFOs of one step.

    `SUM`: the receiver reads one value, the sum of all FIFOs. `COPY`: the sender stores once, for all FIFOs.
    """

    SUM = "sum"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Fifo:
    """A queue of slots from rank `src` to ranks `dsts` for one share.

    Attributes:
        dsts: with several destinations, each slot is written once and read by all of them.
        index: distinguishes queues of one program that have the same ranks, routes, `through` and `turns`.
        routes: for each destination, the links on the path to it, as link ids of the plan's graph. Empty if the
            program was built without a graph.
        link: the class of the slowest link of all routes; None without routes.
        through: what a switch does with this FIFO, which may then lead to its own source; None if no switch copies or
            adds.
        turn: the place among the `turns` interleaved FIFOs that have the same `memory`.
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
        if not 1 <= self.turns <= MAX_RANKS:
            raise IRError(f"1 to {MAX_RANKS} FIFOs are interleaved, not {self.turns}")
        if not 0 <= self.turn < self.turns:
            raise IRError(f"the turn of a FIFO is below its {self.turns} turns, not {self.turn}")
        if self.index < 0:
            raise IRError(f"the index of a FIFO cannot be {self.index}")
        if self.through is not None and len(self.dsts) != 1:
            raise IRError(f"a FIFO through a switch has one reader, not {list(self.dsts)}")
        if not self.dsts or (self.src in self.dsts and self.through is None) or len(set(self.dsts)) != len(self.dsts):
            raise IRError(f"a FIFO must go from one rank to other, distinct ranks, not {self.src} -> {list(self.dsts)}")
        if self.routes and len(self.routes) != len(self.dsts):
            raise IRError(f"a FIFO to {len(self.dsts)} ranks has a route to each, not {len(self.routes)}")
        if not all(self.routes):
            raise IRError("a route of a FIFO has at least one link")
        if bool(self.routes) != (self.link is not None):
            raise IRError("a FIFO has its routes and their class, or neither")

    @property
    def memory(self) -> tuple[int, tuple[int, ...], tuple[tuple[int, ...], ...], int, Through | None, int]:
        """Identifies the slots. FIFOs with the same `memory`, of one program or of several, share their slots."""
        return (self.src, self.dsts, self.routes, self.index, self.through, self.turns)

    @property
    def place(self) -> tuple[object, ...]:
        """Identifies the FIFO in its program: its slots and its turn."""
        return (*self.memory, self.turn)


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive of one rank.

    The value of a step is the reduction of the chunks received from the FIFOs `recv`, in this order, and, if `input` is
    set, of the rank's input, which comes after the first `input_at` received chunks. If a switch sums the chunks, their
    order is unknown. The step writes the value to the output if `output` is set, and into every FIFO of `send`. `recv`
    and `send` are FIFO ids.
    """

    share: int
    lag: int
    input: bool
    recv: tuple[int, ...]
    output: bool
    send: tuple[int, ...]
    input_at: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.input_at <= MAX_INPUT_AT:
            raise IRError(f"the input comes after 0 to {MAX_INPUT_AT} receives, not after {self.input_at}")
        if self.input_at > len(self.recv) or (self.input_at and not self.input):
            raise IRError(f"a step with {len(self.recv)} receives has no own input after {self.input_at} of them")
        if self.shape not in _NAMES:
            raise IRError(f"no primitive has the shape (input, recv, output, send) = {self.shape}")
        if self.lag < 0:
            raise IRError(f"a step's lag cannot be {self.lag}")
        if len({*self.recv, *self.send}) != len(self.recv) + len(self.send):
            raise IRError(f"{self.name} names a FIFO twice")

    @property
    def shape(self) -> tuple[bool, bool, bool, bool]:
        """(reads the input, receives, writes the output, sends)."""
        return (self.input, bool(self.recv), self.output, bool(self.send))

    @property
    def name(self) -> str:
        """The name of the primitive, such as recvReduceSend."""
        return _NAMES[self.shape]

    @property
    def reduces(self) -> bool:
        """Returns whether the step combines several values."""
        return self.input and bool(self.recv)


@dataclass(frozen=True, slots=True)
class Channel:
    """One loop. Rank r runs `steps[r]` in each iteration."""

    steps: tuple[tuple[Step, ...], ...]


def check_weights(weights: tuple[int, ...]) -> None:
    """Checks the weights of path classes: one number per class of `JOINT`, not all of them 0.

    Raises:
        IRError: the weights are not valid.
    """
    if len(weights) != len(JOINT) or not all(0 <= weight <= MAX_WEIGHT for weight in weights) or not any(weights):
        wanted = f"{len(JOINT)} numbers from 0 to {MAX_WEIGHT}, not all 0"
        raise IRError(f"the weights of {', '.join(JOINT)} are {wanted}, not {list(weights)}")


@dataclass(frozen=True)
class Program:
    """One collective. The ids of shares, FIFOs and channels are their positions in the tuples.

    Attributes:
        slots: slots of each queue, that is, of the FIFOs of one `Fifo.memory` together.
        servers: the server number of each rank; empty if all ranks are on one server.
        weights: one number per path class of `JOINT`, 0 for a class without shares; empty if the program is not
            multi-path. A call may change the weights, but not give one to a class without shares.
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
        if any(server < 0 for server in self.servers):
            raise IRError(f"the number of a server cannot be {min(self.servers)}")
        if self.weights:
            check_weights(self.weights)
        self._check_references()

    def server(self, rank: int) -> int:
        """Returns the server number of a rank."""
        return self.servers[rank] if self.servers else 0

    @property
    def takes_turns(self) -> bool:
        """Returns whether some FIFOs are interleaved."""
        return any(fifo.turns > 1 for fifo in self.fifos)

    @property
    def own_behind(self) -> list[Step]:
        """Returns the steps that reduce the rank's input after at least one received chunk."""
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
        """Returns whether a switch adds up what the step receives. The step then reads one value."""
        return bool(step.recv) and self.fifos[step.recv[0]].through is Through.SUM

    def copies_in_switch(self, step: Step) -> bool:
        """Returns whether a switch copies what the step sends. The step then stores the value once."""
        return bool(step.send) and self.fifos[step.send[0]].through is Through.COPY

    def touches(self, step: Step) -> int:
        """Returns how many times the step reads or writes each byte of its chunk.

        The count includes the input, each received FIFO, the output and each FIFO of `send`. A sum of the switch is
        read once, and a value that the switch copies is written once.
        """
        reads = 1 if self.sums_in_switch(step) else len(step.recv)
        writes = 1 if self.copies_in_switch(step) else len(step.send)
        return reads + step.input + step.output + writes

    @property
    def in_switch(self) -> bool:
        """Returns whether a switch adds or copies for some step."""
        return any(fifo.through is not None for fifo in self.fifos)

    @property
    def lags(self) -> int:
        """The sum of the lags of all steps, which the manifest records. Equal sums do not imply equal lags."""
        return sum(step.lag for channel in self.channels for steps in channel.steps for step in steps)

    def replace(self, **changes: object) -> Program:
        """Returns a copy with other values of some fields, validated again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def slots_by_memory(programs: Iterable[Program]) -> dict[object, int]:
    """Returns, for each `Fifo.memory` of some programs, the largest number of slots that one of the programs needs."""
    slots: dict[object, int] = {}
    # For speed: programs that `replace(chunk_bytes=...)` has made share one tuple of FIFOs.
    for program in {(id(program.fifos), program.slots): program for program in programs}.values():
        slots.update({fifo.memory: max(program.slots, slots.get(fifo.memory, 0)) for fifo in program.fifos})
    return slots
