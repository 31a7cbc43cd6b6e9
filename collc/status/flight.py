"""Joins the files that the ranks of a communicator write to COLLC_DUMP when it fails or on request.

templates/runtime/communicator/flight.cpp writes them. A killed rank writes none, but the files of other ranks have its
last calls, from the shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from collc.checker.values import parse_json
from collc.errors import RunError
from collc.inputs import read_input
from collc.status.model import (
    ALIVE,
    COMPLETED,
    DIED,
    ELSEWHERE,
    LEFT,
    SCHEDULED,
    STARTED,
    UNKNOWN,
    Call,
    Communicator,
    Rank,
)

FORMAT = "collc-flight/1"
_MOST_BYTES, _MOST_VALUES, _MOST_RANKS = 64 << 20, 4_000_000, 1 << 12
_FAULTS_OF_OTHERS = (5, 6)  # ncclInvalidUsage, for calls that differ, and ncclRemoteError
_STATES = (ALIVE, DIED, LEFT, ELSEWHERE)
_CALL_STATES = (SCHEDULED, STARTED, COMPLETED)
_HINT = "give the collc-*-rank*.json files of one folder COLLC_DUMP"


def join(paths: Sequence[Path]) -> list[Communicator]:
    """Returns one communicator for each name in the files, with the records of its ranks about themselves and others.

    Raises:
        RunError: a file is no flight record, or two files contradict each other.
    """
    files: dict[str, list[_File]] = {}
    for path in paths:
        file = _File(path)
        files.setdefault(file.communicator, []).append(file)
    return [_joined(name, group) for name, group in sorted(files.items())]


class _File:
    """A file with checked values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        root = self._table(parse_json(read_input(path, limit=_MOST_BYTES), self._fail, _MOST_VALUES), "the file")
        if root.get("format") != FORMAT:
            self._fail(f"is no record of a communicator: its format is not {FORMAT}")
        self.communicator = self._text(root, "communicator")
        self.nranks = self._number(root, "nranks", 1, _MOST_RANKS)
        self.rank = self._number(root, "rank", 0, self.nranks - 1)
        self.library = self._text(root, "library")
        error = self._table(root.get("error"), "error")
        self.result = self._number(error, "result", 0, 1 << 31)
        self.error = self._text(error, "text") if self.result else ""
        self.time = self._number(root, "time_ns", 0, 1 << 63)
        self.own = Rank(
            rank=self.rank,
            state=ALIVE,
            process=self._number(root, "pid", 0, 1 << 31),
            host=self._text(root, "host"),
            gpu=self._text(root, "gpu"),
            newest=max((c.number for c in self._calls(root) if not c.transfer), default=0),
            calls=self._calls(root),
            error=self.error,
        )
        self.peers = [self._peer(self._table(one, "peers")) for one in self._list(root, "peers")]

    def _peer(self, obj: Mapping[str, Any]) -> Rank:
        state = self._text(obj, "state")
        if state not in _STATES:
            self._fail(f"a rank's state cannot be {state}")
        here = state != ELSEWHERE
        return Rank(
            rank=self._number(obj, "rank", 0, self.nranks - 1),
            state=state,
            process=self._number(obj, "pid", 0, 1 << 31) if here else None,
            host=self._text(obj, "host"),
            gpu=self._text(obj, "gpu"),
            newest=self._number(obj, "newest", 0, 1 << 64),
            calls=self._calls(obj),
        )

    def _calls(self, obj: Mapping[str, Any]) -> tuple[Call, ...]:
        return tuple(self._call(self._table(one, "entries")) for one in self._list(obj, "entries"))

    def _call(self, obj: Mapping[str, Any]) -> Call:
        transfer = obj.get("is_p2p") is True
        state = self._text(obj, "state")
        if state not in _CALL_STATES:
            self._fail(f"a call's state cannot be {state}")
        begun = self._number(obj, "time_created_ns", -(1 << 63), 1 << 63)
        ended = "time_discovered_completed_ns"  # absent if the library did not record the end
        lasted = max(self._number(obj, ended, -(1 << 63), 1 << 63) - begun, 0) if ended in obj else None
        return Call(
            number=self._number(obj, "p2p_seq_id" if transfer else "collective_seq_id", 0, 1 << 64),
            collective=self._text(obj, "profiling_name").removeprefix("collc:"),
            text=self._text(obj, "call"),
            transfer=transfer,
            history="" if transfer else self._text(obj, "history"),
            state=state,
            age=max(self.time - begun, 0) / 1e9,
            begun_ns=begun,
            lasted_ns=lasted,
        )

    def _table(self, obj: object, name: str) -> Mapping[str, Any]:
        if not isinstance(obj, dict):
            self._fail(f"{name} is no JSON object")
        return obj

    def _list(self, obj: Mapping[str, Any], key: str) -> list[Any]:
        value = obj.get(key)
        if not isinstance(value, list):
            self._fail(f"{key} is no list")
        return value

    def _text(self, obj: Mapping[str, Any], key: str) -> str:
        value = obj.get(key)
        if not isinstance(value, str):
            self._fail(f"{key} is no text")
        return value

    def _number(self, obj: Mapping[str, Any], key: str, least: int, most: int) -> int:
        value = obj.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self._fail(f"{key} is no number from {least} to {most}")
        return value

    def _fail(self, what: str) -> NoReturn:
        raise RunError(what, where=str(self.path), hint=_HINT)


def _joined(name: str, files: Sequence[_File]) -> Communicator:
    first = files[0]
    for file in files[1:]:
        if file.nranks != first.nranks:
            raise RunError(
                f"has {file.nranks} ranks, but {first.path} {first.nranks}", where=str(file.path), hint=_HINT
            )
    own = {file.rank: file for file in files}
    if len(own) != len(files):
        twice = next(file for file in files if own[file.rank] is not file)
        raise RunError(
            f"is of rank {twice.rank}, like {own[twice.rank].path}", where=str(twice.path), hint="give each file once"
        )
    ranks = []
    for rank in range(first.nranks):
        seen = [peer for file in files for peer in file.peers if peer.rank == rank]
        ranks.append(own[rank].own if rank in own else _seen(rank, seen))
    failed = [file for file in files if file.result]
    if not failed:
        return Communicator(name, first.nranks, first.library, "", "", tuple(ranks))
    # The first rank that failed has the reason. Later ones may only have been informed.
    earliest = min(failed, key=lambda file: file.time)
    own_fault = [file for file in failed if file.result not in _FAULTS_OF_OTHERS]
    broken_by = min(own_fault, key=lambda file: file.time).rank if own_fault else None
    failure = f"rank {earliest.rank}: {earliest.error}"
    return Communicator(name, first.nranks, first.library, "", failure, tuple(ranks), broken_by)


def _seen(rank: int, seen: Iterable[Rank]) -> Rank:
    """Returns the most informative record of other ranks about a rank that wrote no file."""
    order = (UNKNOWN, ELSEWHERE, ALIVE, LEFT, DIED)
    return max(seen, key=lambda one: (order.index(one.state), one.newest, len(one.calls)), default=Rank(rank))
