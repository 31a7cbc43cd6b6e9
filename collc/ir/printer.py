"""The text form of the IR, one step per line. ``parse_program(print_program(p)) == p`` for every program p that
`collc.checker.programs.verify` accepts.

    collc-ir/1 broadcast root=0 ranks=3 slots=4 chunk=65536       # servers=0,0,1 if the ranks are on several servers
    share 0: block 0 [0, 1)
    fifo 0: 0 -> 1,2 share 0 index 0 over nvlink 4/6              # without `over ...` if the program has no routes
    channel 0
      rank 0
        copySend share 0 lag 0 send 0                             # `input-after N`: the input after N receives
      rank 1
        recv share 0 lag 0 recv 0
      rank 2
        recv share 0 lag 0 recv 0

A multi-path program has ``weights=nvlink:3,pcie:1`` in its first line and a path class at the end of each share. A FIFO
of a switch ends with ``through sum`` or ``through copy``, and the first of seven interleaved FIFOs with ``turn 0/7``. A
comment begins with `#`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from collc.collectives.model import Collective
from collc.errors import IRError
from collc.ir.nodes import MAX_RANKS, SHAPES, Channel, Fifo, Program, Share, Step, Through
from collc.topology.model import JOINT, LinkKind

FORMAT = "collc-ir/1"
MAX_LINES = 5_000_000

_IDS = r"\d{1,9}(?:,\d{1,9})*"
_HEADER = re.compile(
    r"collc-ir/1 (\w+)(?: root=(\d{1,9}))? ranks=(\d{1,9}) slots=(\d{1,9}) chunk=(\d{1,12})"
    rf"(?: servers=({_IDS}))?(?: weights=(\w+:\d{{1,4}}(?:,\w+:\d{{1,4}})*))?"
)
_SHARE = re.compile(
    r"share (\d{1,9}): block (\d{1,9}) \[(\d{1,40}(?:/\d{1,40})?), (\d{1,40}(?:/\d{1,40})?)\)(?: (\w+))?"
)
_FIFO = re.compile(
    rf"fifo (\d{{1,9}}): (\d{{1,9}}) -> ({_IDS}) share (\d{{1,9}}) index (\d{{1,9}})"
    rf"(?: over (\w+) ({_IDS}(?:/{_IDS})*))?(?: through (sum|copy))?(?: turn (\d{{1,9}})/(\d{{1,9}}))?"
)
_STEP = re.compile(
    r"(\w+) share (\d{1,9}) lag (\d{1,9})(?: recv (\d{1,9}(?:,\d{1,9})*))?(?: send (\d{1,9}(?:,\d{1,9})*))?"
    r"(?: input-after (\d{1,3}))?"
)


def print_program(program: Program) -> str:
    """Returns the text of a program; it ends with a newline."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    root = "" if program.root is None else f" root={program.root}"
    servers = f" servers={_ids(program.servers)}" if program.servers else ""
    weights = f" weights={print_weights(program.weights)}" if program.weights else ""
    yield (
        f"{FORMAT} {program.collective.value}{root} ranks={program.nranks} "
        f"slots={program.slots} chunk={program.chunk_bytes}{servers}{weights}"
    )
    for i, share in enumerate(program.shares):
        part = f" {JOINT[share.part]}" if program.weights or share.part else ""
        yield f"share {i}: block {share.block} [{share.lo}, {share.hi}){part}"
    for i, fifo in enumerate(program.fifos):
        turn = f" turn {fifo.turn}/{fifo.turns}" if fifo.turns > 1 else ""
        yield (
            f"fifo {i}: {fifo.src} -> {_ids(fifo.dsts)} share {fifo.share} index {fifo.index}"
            f"{_route(fifo)}{_through(fifo)}{turn}"
        )
    for c, channel in enumerate(program.channels):
        yield f"channel {c}"
        for r, steps in enumerate(channel.steps):
            if steps:
                yield f"  rank {r}"
            for step in steps:
                yield f"    {print_step(step)}"


def print_weights(weights: Sequence[int]) -> str:
    """Returns a text such as ``nvlink:3,pcie:1``, without path classes of weight 0."""
    return ",".join(f"{name}:{weight}" for name, weight in zip(JOINT, weights, strict=True) if weight)


def _route(fifo: Fifo) -> str:
    """Returns the link class of a FIFO and the links to each destination; empty without routes."""
    return f" over {fifo.link.value} {'/'.join(map(_ids, fifo.routes))}" if fifo.link else ""


def _through(fifo: Fifo) -> str:
    return f" through {fifo.through.value}" if fifo.through else ""


def print_step(step: Step) -> str:
    """Returns the line of a step, without indentation."""
    recv = f" recv {_ids(step.recv)}" if step.recv else ""
    send = f" send {_ids(step.send)}" if step.send else ""
    input_at = f" input-after {step.input_at}" if step.input_at else ""
    return f"{step.name} share {step.share} lag {step.lag}{recv}{send}{input_at}"


def _ids(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids))


def parse_program(text: str, where: str = "<ir>") -> Program:
    """Returns the program of a text.

    Args:
        where: the file's name, for errors.

    Raises:
        IRError: a line is not IR, or the program is malformed. The error names `where`, and the line if one is wrong.
    """
    reader = _Reader(text, where)
    return reader.program()


class _Reader:
    """A cursor over the lines of a text, without comments (`#`) and blank lines."""

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        raw = text.split("\n", MAX_LINES)
        if len(raw) > MAX_LINES:
            raise IRError(f"more than {MAX_LINES} lines", where=where)
        stripped = ((n, line.split("#", 1)[0].strip()) for n, line in enumerate(raw, 1))
        self.lines = [(n, line) for n, line in stripped if line]
        self.at = 0

    def fail(self, what: str, hint: str | None = None) -> IRError:
        number = self.lines[min(self.at, len(self.lines) - 1)][0] if self.lines else 1
        return IRError(what, where=f"{self.where}:{number}", hint=hint)

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        if self.at == len(self.lines):
            return None
        match = pattern.fullmatch(self.lines[self.at][1])
        if match:
            self.at += 1
        return match

    def keyword(self, word: str) -> int | None:
        match = self.match(re.compile(rf"{word} (\d{{1,9}})"))
        return int(match[1]) if match else None

    def program(self) -> Program:
        header = self.match(_HEADER)
        if not header:
            wanted = (
                f"expected '{FORMAT} COLLECTIVE [root=R] ranks=N slots=S chunk=BYTES [servers=S,...] [weights=...]'"
            )
            raise self.fail(wanted, hint="`collc compile --dump-after` writes such a text")
        try:
            collective = Collective(header[1])
        except ValueError:
            raise self.fail_at_previous(f"no collective is called {header[1]!r}") from None
        nranks = int(header[3])
        if nranks > MAX_RANKS:
            raise self.fail_at_previous(f"a program has 1 to {MAX_RANKS} ranks, not {nranks}")
        shares = self.shares()
        fifos = self.fifos()
        channels = self.channels(nranks)
        if self.at != len(self.lines):
            raise self.fail(f"unexpected line {self.lines[self.at][1]!r}")
        root = None if header[2] is None else int(header[2])
        servers = _parse_ids(header[6])
        try:
            return Program(
                collective, root, nranks, int(header[4]), int(header[5]), shares, fifos, channels, servers,
                parse_weights(header[7] or ""),
            )  # fmt: skip
        except IRError as error:
            place = f"{self.where}: {error.where}" if error.where else self.where
            raise IRError(error.what, where=place, hint=error.hint) from None

    def shares(self) -> tuple[Share, ...]:
        shares: list[Share] = []
        while m := self.match(_SHARE):
            self.check_id("share", int(m[1]), len(shares))
            try:
                part = JOINT.index(m[5]) if m[5] in JOINT else 0 if m[5] is None else len(JOINT)
                shares.append(Share(int(m[2]), Fraction(m[3]), Fraction(m[4]), part))
            except (IRError, ZeroDivisionError) as error:
                raise self.fail_at_previous(str(error)) from None
        return tuple(shares)

    def fifos(self) -> tuple[Fifo, ...]:
        fifos: list[Fifo] = []
        while m := self.match(_FIFO):
            self.check_id("fifo", int(m[1]), len(fifos))
            try:
                routes = tuple(_parse_ids(route) for route in m[7].split("/")) if m[7] else ()
                link = LinkKind(m[6]) if m[6] else None
                through = Through(m[8]) if m[8] else None
                turn = int(m[9] or 0), int(m[10] or 1)
                fifos.append(Fifo(int(m[2]), _parse_ids(m[3]), int(m[4]), int(m[5]), routes, link, through, *turn))
            except IRError as error:
                raise self.fail_at_previous(error.what) from None
            except ValueError:
                raise self.fail_at_previous(f"no class of links is called {m[6]!r}") from None
        return tuple(fifos)

    def channels(self, nranks: int) -> tuple[Channel, ...]:
        channels: list[Channel] = []
        while (number := self.keyword("channel")) is not None:
            self.check_id("channel", number, len(channels))
            steps: list[tuple[Step, ...]] = [()] * nranks
            last = -1
            while (rank := self.keyword("rank")) is not None:
                if not last < rank < nranks:
                    raise self.fail_at_previous(f"rank {rank} out of order or not below {nranks}")
                steps[rank] = self.steps()
                last = rank
            channels.append(Channel(tuple(steps)))
        return tuple(channels)

    def steps(self) -> tuple[Step, ...]:
        result: list[Step] = []
        while m := self.match(_STEP):
            if m[1] not in SHAPES:
                raise self.fail_at_previous(f"no primitive is called {m[1]!r}")
            reads, receives, writes, sends = SHAPES[m[1]]
            if receives != (m[4] is not None) or sends != (m[5] is not None):
                raise self.fail_at_previous(
                    f"{m[1]} needs {'' if receives else 'no '}recv and {'' if sends else 'no '}send"
                )
            try:
                ids = _parse_ids(m[4]), _parse_ids(m[5])
                step = Step(int(m[2]), int(m[3]), reads, ids[0], writes, ids[1], int(m[6] or 0))
            except IRError as error:
                raise self.fail_at_previous(error.what) from None
            result.append(step)
        return tuple(result)

    def check_id(self, what: str, number: int, expected: int) -> None:
        if number != expected:
            raise self.fail_at_previous(f"expected {what} {expected}, not {number}: ids count up from 0")

    def fail_at_previous(self, what: str) -> IRError:
        self.at -= 1
        return self.fail(what)


def parse_weights(text: str) -> tuple[int, ...]:
    """Returns the weights of a text of `print_weights`; empty for an empty text.

    Raises:
        IRError: a path class does not exist, or occurs twice.
    """
    weights: dict[str, int] = {}
    for word in filter(None, text.split(",")):
        name, _, number = word.partition(":")
        if name not in JOINT or name in weights or not number.isdecimal():
            raise IRError(f"expected the weights of {', '.join(JOINT)}, each class once, not {text!r}")
        weights[name] = int(number)
    return tuple(weights.get(name, 0) for name in JOINT) if weights else ()


def _parse_ids(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()
