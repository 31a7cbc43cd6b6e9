"""Makes views of results of `bench` and `simulate`: times, bandwidths, and ratios of times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from collc.errors import CollcError
from collc.show.page import View

_HINT = "`collc bench --json` and `collc simulate --json` print rows"
Key = tuple[str, str, str, int, bool]


def results_view(inputs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[View]:
    """Returns one view of the rows of one or more files: curves by collective, ratios, a table and breakdowns.

    The ratios compare each file's times with those in the first file.

    If a single file also has NCCL's predictions (`simulate --compare nccl`), the ratios are NCCL's times over collc's.

    Raises:
        CollcError: a file has no valid rows of these commands.
    """
    rows = {name: _rows(name, value) for name, value in inputs}
    if len(rows) < len(inputs):
        rows = {f"{name} ({i + 1})": _rows(name, value) for i, (name, value) in enumerate(inputs)}
    series: dict[str, dict[Key, dict[int, dict[str, Any]]]] = {name: _by_key(found) for name, found in rows.items()}
    first, value = inputs[0]
    beside = value.get("compare")
    if len(inputs) == 1 and isinstance(beside, dict):
        series = {"collc": series[next(iter(series))]}
        for collective, lines in beside.items():
            for label, line in lines.items() if isinstance(lines, dict) else ():
                found = _by_key(_rows(first, {"rows": line}))
                series.setdefault(str(label), {}).update({k: v for k, v in found.items() if k[0] == collective})
    names = list(series)
    keys = sorted({key for found in series.values() for key in found})
    plots = []
    for key in keys:
        held = _merged([(name, series[name][key]) for name in names if key in series[name]])
        curves = [_curve(name, points, held[0][1]) for name, points in held]
        plots.append({"title": _title(key, keys), "series": curves})
    several = len(inputs) > 1
    table = [_cells(name if several else "", row) for name in rows for row in rows[name]]
    data = {"plots": plots, "names": names, "rates": [], "table": table}
    return [View("results", "Results", data)]


Series = tuple[str, dict[int, dict[str, Any]]]


def _merged(held: Sequence[Series]) -> list[Series]:
    """Merges series with equal times, because NCCL's choice is often the same algorithm at every size.

    A merged series has both names. The first series stays separate.
    """
    found: list[Series] = []
    for name, points in held:
        times = {size: row["time_us"] for size, row in points.items()}
        for i, (other, own) in enumerate(found[1:], 1):
            if times == {size: row["time_us"] for size, row in own.items()}:
                found[i] = (f"{other}, {name}", own)
                break
        else:
            found.append((name, points))
    return found


def _rows(name: str, value: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = value.get("rows")
    if not isinstance(rows, list) or not rows:
        raise CollcError("`rows` is no list with rows", where=name, hint=_HINT)
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("collective"), str):
            raise CollcError("a row names no collective", where=name, hint=_HINT)
        if not isinstance(row.get("bytes"), int) or isinstance(row["bytes"], bool):
            raise CollcError("`bytes` of a row is no whole number", where=name, hint=_HINT)
        for key in ("bytes", "time_us", "algbw_gbps", "busbw_gbps"):
            number = row.get(key)
            fine = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
            if not fine or number is None or number < 0:
                raise CollcError(f"`{key}` of a row is no number", where=name, hint=_HINT)
    return rows


def _by_key(rows: Sequence[dict[str, Any]]) -> dict[Key, dict[int, dict[str, Any]]]:
    found: dict[Key, dict[int, dict[str, Any]]] = {}
    for row in rows:
        root = row.get("root")
        key = (
            row["collective"],
            str(row.get("type", "")),
            str(row.get("op", "")),
            root if isinstance(root, int) else -1,
            bool(row.get("in_place")),
        )
        found.setdefault(key, {})[int(row["bytes"])] = row
    return found


def _title(key: Key, keys: Sequence[Key]) -> str:
    """Returns a title: the collective, and the type, operation, root and placement if they differ among plots."""
    collective, kind, op, root, in_place = key
    alike = [other for other in keys if other[0] == collective]
    parts = [collective]
    if len({other[1] for other in alike}) > 1:
        parts.append(kind)
    if len({other[2] for other in alike}) > 1:
        parts.append(op)
    if len({other[3] for other in alike}) > 1:
        parts.append(f"root {root}")
    if len({other[4] for other in alike}) > 1:
        parts.append("in place" if in_place else "out of place")
    return ", ".join(parts)


def _curve(name: str, points: Mapping[int, dict[str, Any]], base: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """Returns points of [bytes, us, algbw, busbw, ratio, low, high].

    The ratio is the time over the time of the first series. If the error of the model was measured, the range contains
    four of five measurements.
    """
    rows = []
    for size, row in sorted(points.items()):
        of = base.get(size, {}).get("time_us")
        span = row.get("judged", {}).get("range_us") if isinstance(row.get("judged"), dict) else None
        ratio = row["time_us"] / of if of else None
        ends: list[float | None] = [None, None]
        if of and isinstance(span, list) and len(span) == 2 and all(isinstance(x, int | float) for x in span):
            ends = [x / of for x in span]
        rows.append([size, row["time_us"], row["algbw_gbps"], row["busbw_gbps"], ratio, *ends])
    return {"name": name, "points": rows}


def _cells(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    kept = (
        "collective",
        "type",
        "op",
        "root",
        "in_place",
        "bytes",
        "plan",
        "proto",
        "time_us",
        "algbw_gbps",
        "busbw_gbps",
        "wrong",
    )
    cells: dict[str, Any] = {"name": name} | {key: row.get(key) for key in kept}
    parts = row.get("breakdown")
    if isinstance(parts, list):
        cells["breakdown"] = [_part(part) for part in parts if isinstance(part, dict)]
    return cells


def _part(part: Mapping[str, Any]) -> list[float]:
    keys = ("channel", "waiting_us", "copying_us", "reducing_us")
    return [float(x) if isinstance(x := part.get(key), int | float) and math.isfinite(x) else 0.0 for key in keys]
