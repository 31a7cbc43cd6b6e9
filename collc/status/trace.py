"""Writes the recorded calls of failed jobs as a Chrome trace, JSON that Perfetto and chrome://tracing show.

Source of the format: "Trace Event Format", Google, https://github.com/google/perfetto and chrome://tracing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from collc.status.model import STARTED, Call, Communicator, Rank

_COLLECTIVES, _TRANSFERS = 0, 1  # the threads of a rank in the trace


def chrome_trace(communicators: Sequence[Communicator]) -> dict[str, Any]:
    """Returns the trace: a process for each rank that has calls, with a thread of collectives and one of transfers.

    A call whose end is known, or that had not ended when its record was written, is a bar. Only the start of any other
    call is shown. Times are microseconds since the first call, by the clock of each rank's machine.
    """
    rows = [(one, rank) for one in communicators for rank in one.ranks if rank.calls]
    begins = [call.begun_ns for _, rank in rows for call in rank.calls if call.begun_ns is not None]
    first = min(begins, default=0)
    events: list[dict[str, Any]] = []
    for number, (one, rank) in enumerate(rows):
        events += _names(number, one, rank)
        events += [_event(number, call, call.begun_ns - first) for call in rank.calls if call.begun_ns is not None]
    return {"displayTimeUnit": "ns", "otherData": {"begin_ns": str(first)}, "traceEvents": events}


def _names(number: int, one: Communicator, rank: Rank) -> Iterator[dict[str, Any]]:
    words = [f"rank {rank.rank}", *([rank.gpu] if rank.gpu else [])]
    words += [f"process {rank.process}"] if rank.process is not None else []
    words += [f"on {rank.host}"] if rank.host else []
    name = f"{' '.join(words)}, communicator {one.name}"
    yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": number}}
    lanes = {_COLLECTIVES: "collectives", _TRANSFERS: "transfers"}
    for lane in sorted({_lane(call) for call in rank.calls}):
        yield {"ph": "M", "pid": number, "tid": lane, "name": "thread_name", "args": {"name": lanes[lane]}}


def _event(number: int, call: Call, begun_ns: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": call.collective,
        "cat": "transfer" if call.transfer else "collective",
        "pid": number,
        "tid": _lane(call),
        "ts": begun_ns / 1000,
        "args": {"number": call.number, "call": call.text, "state": call.state},
    }
    lasted = call.lasted_ns
    if lasted is None and call.state == STARTED and call.age is not None:
        lasted = round(call.age * 1e9)
    if lasted is None:
        return {**event, "ph": "i", "s": "t"}
    return {**event, "ph": "X", "dur": lasted / 1000}


def _lane(call: Call) -> int:
    return _TRANSFERS if call.transfer else _COLLECTIVES
