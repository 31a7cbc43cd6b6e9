"""The Chrome trace of kept calls: bars where an end is known, points where it is not."""

from __future__ import annotations

from collc.status.model import COMPLETED, SCHEDULED, STARTED, Call, Communicator, Rank
from collc.status.trace import chrome_trace

BEGIN = 1_800_000_000_000_000_001  # ns: more than a float can tell apart


def test_bars_and_points() -> None:
    ended = Call(1, "reduce", "reduce of 8", False, "", COMPLETED, 3.0, BEGIN, 2_500)
    no_end = Call(2, "reduce", "reduce of 9", False, "", COMPLETED, 2.0, BEGIN + 1_500, None)
    open_one = Call(1, "sendrecv", "a send", True, "", STARTED, 0.5, BEGIN + 7_000, None)
    on_stream = Call(3, "reduce", "reduce of 9", False, "", SCHEDULED, 2.0, BEGIN + 9_001, None)
    unknown = Call(4, "reduce", "reduce of 9", False, "", COMPLETED)
    full = Rank(1, calls=(ended, no_end, open_one), gpu="gpu4", host="box", process=7)
    ranks = (Rank(0), full, Rank(2, calls=(on_stream, unknown)))
    trace = chrome_trace([Communicator("cafe", 3, "x.so", "", "", ranks)])
    shown = [
        (one["pid"], one["tid"], one["ph"], one["name"], one["ts"], one.get("dur"))
        for one in trace["traceEvents"]
        if one["ph"] != "M"
    ]
    assert shown == [
        (0, 0, "X", "reduce", 0.0, 2.5),
        (0, 0, "i", "reduce", 1.5, None),
        (0, 1, "X", "sendrecv", 7.0, 500_000.0),
        (1, 0, "i", "reduce", 9.001, None),
    ]
    names = [(one["pid"], one.get("tid"), one["args"]["name"]) for one in trace["traceEvents"] if "name" in one["args"]]
    assert names == [
        (0, None, "rank 1 gpu4 process 7 on box, communicator cafe"),
        (0, 0, "collectives"),
        (0, 1, "transfers"),
        (1, None, "rank 2, communicator cafe"),
        (1, 0, "collectives"),
    ]


def test_nothing_kept() -> None:
    assert chrome_trace([])["traceEvents"] == []
