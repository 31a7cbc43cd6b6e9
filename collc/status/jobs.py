"""Reads the communicators of processes on this machine through /proc.

The kernel lets a process read the memory of another process of the same user, without any effect on it. Stopped
processes can be read too. Only Linux has /proc, and the runtime runs only on Linux.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from collc.checker.library import read_manifest
from collc.errors import CollcError, RunError, UsageError
from collc.inputs import open_input
from collc.limits import limited
from collc.status.board import Board, Told, is_segment, read_board
from collc.status.model import ALIVE, DIED, ELSEWHERE, STOPPED, Communicator, Rank

_SEGMENT = "/memfd:collc (deleted)"  # as /proc/PID/maps names it
_HEAD_BYTES = 40
_PROC = Path("/proc")


@dataclass
class Segment:
    """The shared memory of one communicator on this machine: its bytes, and its address in each process."""

    size: int
    places: dict[int, int] = field(default_factory=dict)  # process -> address


def communicators(process: int | None = None) -> tuple[list[Communicator], list[str]]:
    """Returns the communicators of one process, or of all processes of this user, and a line for each failed read.

    Args:
        process: the process id; None for all that this user may read.

    Raises:
        UsageError: there is no such process.
        RunError: the process belongs to another user.
    """
    if process is not None:
        _check(process)
    found, problems = [], []
    for segment in _segments():
        if process is not None and process not in segment.places:
            continue
        try:
            board = _read(segment)
        except CollcError as error:
            problems.append(f"process {', '.join(map(str, sorted(segment.places)))}: {error}")
            continue
        if board is not None:
            found.append(_communicator(board, segment))
    return sorted(found, key=lambda one: (one.library, one.name)), problems


def _check(process: int) -> None:
    try:
        owner = (_PROC / str(process)).stat().st_uid
    except OSError:
        raise UsageError(f"there is no process {process}", hint="`collc status` lists those that run") from None
    if os.geteuid() not in (0, owner):
        raise RunError(f"process {process} belongs to another user", hint="ask as that user")


def _segments() -> list[Segment]:
    """Returns every segment that a readable process has mapped. Device and inode identify a segment."""
    found: dict[tuple[str, str], Segment] = {}
    for name in os.listdir(_PROC):
        if not name.isdigit():
            continue
        with suppress(OSError):  # the process has ended, or belongs to another user
            for key, address, size in _mappings(int(name)):
                found.setdefault(key, Segment(size)).places[int(name)] = address
    return [*found.values()]


def _mappings(process: int) -> Iterator[tuple[tuple[str, str], int, int]]:
    """Yields ((device, inode), address, bytes) of the memory of each communicator."""
    for line in (_PROC / str(process) / "maps").read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.endswith(_SEGMENT):
            continue
        span, _, offset, device, inode, *_ = line.split()
        begin, end = (int(part, 16) for part in span.split("-"))
        if int(offset, 16) == 0:
            yield (device, inode), begin, end - begin


def _read(segment: Segment) -> Board | None:
    """Returns the state in a segment, from the first process whose memory can be read.

    Raises:
        RunError: there is no such process, or the memory is malformed.
    """
    refusal: OSError | None = None
    for process, address in sorted(segment.places.items()):
        try:
            handle = os.open(_PROC / str(process) / "mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            refusal = error
            continue
        try:
            return _read_from(handle, address, segment.size)
        except OSError as error:  # the process has ended meanwhile
            refusal = error
        finally:
            os.close(handle)
    why = refusal.strerror if refusal is not None else "it has ended"
    hint = "where kernel.yama.ptrace_scope is not 0 or a container forbids it, ask as root outside"
    raise RunError(f"its memory cannot be read: {why}", hint=hint)


def _read_from(handle: int, address: int, size: int) -> Board | None:
    def look(at: int, count: int) -> bytes:
        data = os.pread(handle, count, address + at)
        if len(data) != count:
            raise OSError(0, "the memory ends early")
        return data

    if not is_segment(look(0, _HEAD_BYTES)):
        raise RunError("its library shows nothing to this collc", hint="compile it again with this version")
    return read_board(look, size, time.monotonic_ns())


def _communicator(board: Board, segment: Segment) -> Communicator:
    owners = _owners(segment)
    ranks = tuple(_rank(number, told, owners) for number, told in enumerate(board.ranks))
    plan = _plan(board, next(iter(segment.places)))
    return Communicator(board.name, board.nranks, board.library, plan, board.failure, ranks)


def _rank(number: int, told: Told, owners: dict[int, int]) -> Rank:
    process = owners.get(told.process) if told.process is not None else None
    state = told.state
    if state == ALIVE and process is None:
        state = DIED if told.process is not None else ELSEWHERE
    elif state == ALIVE and process is not None and _is_stopped(process):
        state = STOPPED
    return Rank(
        rank=number,
        state=state,
        process=process if process is not None else told.process,
        host=told.host,
        gpu=told.gpu,
        newest=told.newest,
        calls=told.calls,
        waits_for=() if state == STOPPED else told.waits_for,
        ways=told.ways,
    )


def _owners(segment: Segment) -> dict[int, int]:
    """Returns the id of each process in its own container -> its id here."""
    found = {}
    for process in segment.places:
        with suppress(OSError, ValueError, IndexError):
            text = (_PROC / str(process) / "status").read_text(encoding="utf-8", errors="replace")
            line = next((line for line in text.splitlines() if line.startswith("NSpid:")), f"NSpid:\t{process}")
            found[int(line.split()[-1])] = process
    return found


def _is_stopped(process: int) -> bool:
    with suppress(OSError, IndexError):
        stat = (_PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[0] in ("T", "t")
    return False


def _plan(board: Board, process: int) -> str:
    """Returns the fingerprint of the plan's graph, from the library in the file system of the process, or empty."""
    if board.allocation is None or not board.library.startswith("/"):
        return ""
    path = _PROC / str(process) / "root" / board.library.lstrip("/")
    with suppress(CollcError, OSError, IndexError):
        open_input(path).close()
        with limited(path):
            return str(read_manifest(path)["allocations"][board.allocation]["fingerprint"])
    return ""
