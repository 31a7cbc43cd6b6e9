"""Makes the view of steps over time: the trace of a simulated call as columns of numbers.

The page groups them by channel, pair of ranks or link.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from collc.errors import CollcError
from collc.show.page import View

# More steps are not readable, and make a page of tens of megabytes.
MOST_STEPS = 200_000
Fail = Callable[[str], NoReturn]


def timeline_view(trace: Mapping[str, Any], name: str) -> View:
    """Returns the view of a Chrome trace of `collc simulate --trace`.

    Raises:
        CollcError: it is no such trace, or it has too many steps.
    """

    def fail(what: str) -> NoReturn:
        hint = "`collc simulate TOPO -b SIZE -e SIZE --trace FILE` writes traces that can be shown"
        raise CollcError(what, where=name, hint=hint)

    events = trace.get("traceEvents")
    if not isinstance(events, list):
        fail("traceEvents is no list")
    steps = [e for e in events if isinstance(e, dict) and e.get("ph") == "X"]
    if not steps:
        fail("the trace has no steps")
    if len(steps) > MOST_STEPS:
        fail(f"{len(steps)} steps are too many for a page")
    names = sorted({str(e.get("name")) for e in steps})
    code = {text: i for i, text in enumerate(names)}
    reasons = ["launch", "order", "data", "slot"]
    links: dict[str, int] = {}
    columns: dict[str, list[Any]] = {
        key: []
        for key in (
            "rank",
            "channel",
            "begin",
            "end",
            "name",
            "critical",
            "chunk",
            "share",
            "bytes",
            "why",
            "to",
            "over",
        )
    }
    for event in sorted(steps, key=lambda e: _number(e, "ts", fail)):
        args = event.get("args")
        if not isinstance(args, dict):
            fail("a step has no args")
        begin = _number(event, "ts", fail)
        columns["rank"].append(_whole(event, "pid", fail))
        columns["channel"].append(_whole(event, "tid", fail))
        columns["begin"].append(round(begin, 3))
        columns["end"].append(round(begin + _number(event, "dur", fail), 3))
        columns["name"].append(code[str(event.get("name"))])
        columns["critical"].append(int(event.get("cat") == "critical"))
        for key in ("chunk", "share", "bytes"):
            columns[key].append(_whole(args, key, fail))
        why = args.get("released_by")
        columns["why"].append(reasons.index(why) if why in reasons else 0)
        to, over = args.get("to", []), args.get("over", [])
        if not isinstance(to, list) or not isinstance(over, list):
            fail("`to` and `over` of a step are lists")
        columns["to"].append([rank for rank in to if isinstance(rank, int)])
        columns["over"].append([links.setdefault(str(link), len(links)) for link in over])
    data = {"columns": columns, "names": names, "reasons": reasons, "links": list(links)}
    return View("timeline", "Time", data)


def _number(row: Mapping[str, Any], key: str, fail: Fail) -> float:
    value = row.get(key)
    if value is None or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return fail(f"`{key}` of a step is no number")
    return float(value)


def _whole(row: Mapping[str, Any], key: str, fail: Fail) -> int:
    value = row.get(key)
    if value is None or isinstance(value, bool) or not isinstance(value, int) or abs(value) > 1 << 53:
        return fail(f"`{key}` of a step is no whole number")
    return int(value)
