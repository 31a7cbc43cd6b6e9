"""Reads the shared state of a communicator, which templates/runtime/control/board.h writes.

The bytes come from another process, which may have another version or any contents, so every offset and number is
checked before it is used. Ranks write while it is read, so a record counts only if two reads of it agree.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collc.collectives.model import Collective
from collc.errors import RunError
from collc.status.model import (
    ALIVE,
    COMPLETED,
    DIED,
    ELSEWHERE,
    LEFT,
    SCHEDULED,
    STARTED,
    Call,
)

# The start of a segment: its magic, and at byte _BOARD_AT the offset of the board.
_SEGMENT_MAGIC, _BOARD_AT, _HEAD_BYTES = b"cllcseg2", 32, 40
_BOARD_MAGIC = b"clcbord1"
# The words of a BoardHeader after its magic, in order.
_WORDS = (
    *("bytes", "nranks", "calls", "transfers"),
    *("aborted", "abort_code", "abort_rank", "abort_text", "abort_text_bytes"),
    *("lines", "line_bytes"),
    *("state", "owner", "newest", "finished", "turn", "waits", "waits_words", "in_count", "in_what"),
    *("ranks", "rank_bytes", "call_records", "transfer_records", "record_bytes", "ways", "id", "allocation", "named"),
)
_LIBRARY_BYTES = 256
_HEADER_BYTES = 8 + 8 * len(_WORDS) + _LIBRARY_BYTES
# The fields of a BoardRank: told, process, plan_rank, made_ns, made_ticks, seen_ns, seen_ticks, tells_ends, gpu, host.
_RANK = struct.Struct("=QiIQQQQQ64s64s")
_RANK_BYTES = 192
# The fields of a CallRecord: number, history, count, what, begun, ended.
_RECORD = struct.Struct("=6Q")
_RECORD_BYTES = 64
_OWNER_DIED = 0x40000000  # FUTEX_OWNER_DIED
_MOST_RANKS, _MOST_CALLS, _MOST_LINE = 1 << 12, 1 << 16, 1 << 16
_STATES = {0: ELSEWHERE, 1: ALIVE, 2: LEFT}
_WAYS = {1: "wire", 2: "slots", 3: "kernel copies", 4: "addresses"}  # the key is 1 + Reach
_TYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"),
)
_OPERATIONS = ("sum", "product", "maximum", "minimum")
_AVERAGE, _SCALED = 16, 32
_NAMES = {collective.traits.number: collective for collective in Collective}

_LOOKS, _PAUSE = 4, 0.002

# (offset in the segment, number of bytes) -> the bytes
Look = Callable[[int, int], bytes]


@dataclass(frozen=True)
class Told:
    """The state of one rank in the memory. `process` is its id in its own container; None on another machine."""

    state: str
    process: int | None
    plan_rank: int
    host: str
    gpu: str
    newest: int
    calls: tuple[Call, ...]
    waits_for: tuple[int, ...]
    ways: dict[int, str]


@dataclass(frozen=True)
class Board:
    """The state of a communicator in the memory. `allocation` is its number in the library; None for a single rank."""

    name: str
    nranks: int
    library: str
    allocation: int | None
    failure: str
    ranks: tuple[Told, ...]


def is_segment(head: bytes) -> bool:
    """Returns whether the first 40 bytes start the memory of a communicator whose version can be read."""
    return head[:8] == _SEGMENT_MAGIC and len(head) >= _HEAD_BYTES


def read_board(look: Look, size: int, now_ns: int) -> Board | None:
    """Returns the present state of a communicator; None while its memory is being initialized.

    Args:
        look: reads the segment.
        size: the bytes of the segment.
        now_ns: the monotonic clock of this machine, in nanoseconds.

    Raises:
        RunError: the memory is malformed.
    """
    (at,) = struct.unpack_from("=Q", look(0, _HEAD_BYTES), _BOARD_AT)
    if at == 0:
        return None
    return _Reader(look, size, at, now_ns).board()


class _Reader:
    def __init__(self, look: Look, size: int, at: int, now_ns: int) -> None:
        self._look, self._size, self._now_ns = look, size, now_ns
        header = self._bytes(at, _HEADER_BYTES)
        words = struct.unpack_from(f"={len(_WORDS)}Q", header, 8)
        self._at = dict(zip(_WORDS, words, strict=True))
        good = (
            header[:8] == _BOARD_MAGIC
            and self._at["bytes"] >= _HEADER_BYTES
            and 0 < self._at["nranks"] <= _MOST_RANKS
            and 0 < self._at["calls"] <= _MOST_CALLS
            and 0 < self._at["transfers"] <= _MOST_CALLS
            and self._at["line_bytes"] <= _MOST_LINE
            and self._at["rank_bytes"] == _RANK_BYTES
            and self._at["record_bytes"] == _RECORD_BYTES
            and self._at["waits_words"] <= _MOST_RANKS // 64
        )
        if not good:
            raise _malformed()
        self._library = _text(header[8 + 8 * len(_WORDS) : _HEADER_BYTES])
        self._nranks = self._at["nranks"]

    def board(self) -> Board | None:
        at = self._at
        if at["named"] != 1:
            return None
        lines, waits = self._lines()
        facts = self._bytes(at["ranks"], self._nranks * _RANK_BYTES)
        ways = self._bytes(at["ways"], self._nranks * self._nranks)
        rows = [_RANK.unpack_from(facts, r * _RANK_BYTES) for r in range(self._nranks)]
        unit, latest = _unit(rows)
        clock = _Clock(unit, latest, self._now_ns)
        ranks = []
        for r, row in enumerate(rows):
            own_ways = ways[r * self._nranks : (r + 1) * self._nranks]
            ranks.append(self._rank(r, row, lines[r], waits.get(r, ()), own_ways, clock))
        allocation = None if at["allocation"] == (1 << 64) - 1 else at["allocation"]
        name = f"{at['id']:010x}"
        return Board(name, self._nranks, self._library, allocation, self._failure(), tuple(ranks))

    def _rank(
        self, rank: int, row: tuple[Any, ...], line: bytes, waits: tuple[int, ...], ways: bytes, clock: _Clock
    ) -> Told:
        told, process, plan_rank, *_, tells_ends, gpu, host = row
        here = told == 1
        state = _STATES.get(self._word(line, "state", "I"), ELSEWHERE) if here else ELSEWHERE
        if state == ALIVE and self._word(line, "owner", "I") & _OWNER_DIED:
            state = DIED
        ends = tells_ends == 1
        calls = self._calls("call_records", self._at["calls"], rank, clock, ends) + self._calls(
            "transfer_records", self._at["transfers"], rank, clock, ends
        )
        return Told(
            state=state,
            process=process if here else None,
            plan_rank=plan_rank,
            host=_text(host),
            gpu=_text(gpu),
            newest=self._word(line, "newest", "Q"),
            calls=calls if here else (),
            waits_for=waits if state == ALIVE else (),
            ways={peer: _WAYS[way] for peer, way in enumerate(ways) if way in _WAYS},
        )

    def _word(self, line: bytes, name: str, kind: str) -> int:
        place = self._at[name]
        if place + struct.calcsize(kind) > len(line):
            raise _malformed()
        value: int = struct.unpack_from(f"={kind}", line, place)[0]
        return value

    def _lines(self) -> tuple[list[bytes], dict[int, tuple[int, ...]]]:
        """Returns the line of every rank, and for each sleeping rank the ranks that it waits for.

        A sleeping rank wakes up every 20 ms and writes anew which ranks it waits for, so a single read may fall
        between.
        """
        waits: dict[int, tuple[int, ...]] = {}
        lines: list[bytes] = []
        for look in range(_LOOKS):
            if look:
                time.sleep(_PAUSE)
            lines, again = self._all_lines(), self._all_lines()
            for rank, (line, other) in enumerate(zip(lines, again, strict=True)):
                turn = self._word(line, "turn", "Q")
                if turn % 2 and turn == self._word(other, "turn", "Q"):
                    waits.setdefault(rank, self._waits(line))
            if len(waits) == self._nranks:
                break
        return lines, waits

    def _all_lines(self) -> list[bytes]:
        size = self._at["line_bytes"]
        data = self._bytes(self._at["lines"], self._nranks * size)
        return [data[r * size : (r + 1) * size] for r in range(self._nranks)]

    def _waits(self, line: bytes) -> tuple[int, ...]:
        place, words = self._at["waits"], self._at["waits_words"]
        if place + 8 * words > len(line):
            raise _malformed()
        bits = int.from_bytes(line[place : place + 8 * words], "little")
        return tuple(r for r in range(min(self._nranks, 64 * words)) if bits >> r & 1)

    def _calls(self, where: str, depth: int, rank: int, clock: _Clock, ends: bool) -> tuple[Call, ...]:
        place, size = self._at[where] + rank * depth * _RECORD_BYTES, depth * _RECORD_BYTES
        once, again = self._bytes(place, size), self._bytes(place, size)
        calls = []
        for i in range(0, size, _RECORD_BYTES):
            number, history, count, what, begun, ended = _RECORD.unpack_from(once, i)
            if number == 0 or once[i : i + _RECORD.size] != again[i : i + _RECORD.size]:
                continue
            transfer = where == "transfer_records"
            state = SCHEDULED if not ends else COMPLETED if ended else STARTED
            calls.append(
                Call(
                    number=number,
                    collective=_name(what),
                    text=describe(what, count),
                    transfer=transfer,
                    history="" if transfer else f"{history:016x}",
                    state=state,
                    age=clock.age(begun),
                )
            )
        return tuple(sorted(calls, key=lambda call: call.number))

    def _failure(self) -> str:
        at = self._at
        if struct.unpack("=I", self._bytes(at["aborted"], 4))[0] != 2:
            return ""
        if at["abort_text_bytes"] > _MOST_LINE:
            raise _malformed()
        rank = struct.unpack("=I", self._bytes(at["abort_rank"], 4))[0]
        return f"rank {rank}: {_text(self._bytes(at['abort_text'], at['abort_text_bytes']))}"

    def _bytes(self, at: int, size: int) -> bytes:
        if size > self._size or at > self._size - size:
            raise _malformed()
        return self._look(at, size)


@dataclass(frozen=True)
class _Clock:
    """Converts ticks of the runtime to seconds. `unit` is the nanoseconds of a tick; None if unknown."""

    unit: float | None
    latest: tuple[int, int]  # (nanoseconds, ticks) of one moment
    now_ns: int

    def age(self, ticks: int) -> float | None:
        if self.unit is None:
            return None
        return max((self.now_ns - self.latest[0] + (self.latest[1] - ticks) * self.unit) / 1e9, 0.0)


def _unit(rows: list[tuple[Any, ...]]) -> tuple[float | None, tuple[int, int]]:
    """Returns the nanoseconds of a tick (None if unknown), from the two most distant times, and the later time."""
    times: list[tuple[int, int]] = []
    for told, _, _, made_ns, made_ticks, seen_ns, seen_ticks, *_ in rows:
        if told != 1:
            continue
        pairs = ((made_ns, made_ticks), (seen_ns, seen_ticks))
        times += [(ns, ticks) for ns, ticks in pairs if ns and ticks]
    if not times:
        return None, (0, 0)
    first, last = min(times), max(times)
    # If the times are closer, the delay between the reads of the two clocks matters.
    if last[0] - first[0] < 1_000_000 or last[1] <= first[1]:
        return None, last
    return (last[0] - first[0]) / (last[1] - first[1]), last


def describe(what: int, count: int) -> str:
    """Returns the text of a call, equal to the one of `describe_call` in the runtime."""
    kind, operation, peer = what >> 8 & 0xFF, what >> 16 & 0xFFFF, (what >> 32) - 1
    elements = f"of {count} elements of {_TYPES[kind] if kind < len(_TYPES) else 'an unknown type'}"
    collective = _NAMES.get(what & 0xFF)
    if collective is Collective.SENDRECV:
        return f"a receive {elements} from rank {peer}" if operation == 1 else f"a send {elements} to rank {peer}"
    text = f"{_name(what)} {elements}"
    if collective is not None and collective.traits.reduces:
        text += f" ({_operation(operation)})"
    return text + (f", root {peer}" if peer >= 0 else "")


def _operation(number: int) -> str:
    if number & _AVERAGE:
        return "average"
    if number & _SCALED:
        return "scaled sum"
    return _OPERATIONS[number] if number < len(_OPERATIONS) else "an unknown operation"


def _name(what: int) -> str:
    collective = _NAMES.get(what & 0xFF)
    return collective.value if collective is not None else "unknown collective"


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")


def _malformed() -> RunError:
    return RunError("the shared memory is not what this collc understands", hint="use the collc that built the library")
