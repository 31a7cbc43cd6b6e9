"""The manifest of a library: JSON in which every key is there and of its type, whatever the bytes were."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collc.checker.elf import PARTS
from collc.checker.values import Reader, parse_json
from collc.errors import RunError

FORMAT = "collc-library/1"
_MOST_BYTES, _MOST_VALUES = 1 << 23, 1 << 19
_BLANK = "0" * 64

# Key -> what it holds: text, a whole number (of 0 or more), a truth, null beside one of these (?), or a list of such.
_TOP = {"format": "text", "name": "text", "collc": "text", "target": "text", "build_id": "text", "compiler": "text"}
_ALLOCATION = {"fingerprint": "text", "nranks": "number", "gpus": "[text]", "gpu_sets": "number", "slots": "number"}
_ALLOCATION |= {"slot_bytes": "number", "fifo_bytes": "number"}
_PROGRAM = {"collective": "text", "root": "number?", "rate_gbps": "text?", "bound_gbps": "text?", "optimal": "truth"}
_PROGRAM |= dict.fromkeys(("trees", "depth", "channels", "fifos", "lags", "plan_number", "spread"), "number")
_PROGRAM |= {"chunk_bytes": "number"}
_PROGRAM |= {"plan": "text", "everywhere": "truth", "proto": "text", "min_bytes": "number?", "why": "text"}
_DEVICE = dict.fromkeys(("code", "compiler", "driver"), "text")


def read_claims(data: bytes, path: Path) -> dict[str, Any]:
    """The manifest in these bytes; raises RunError where it is none."""
    reader = Reader(f"{path}: manifest", RunError)

    def fail(what: str) -> Any:
        reader.fail("", f"cannot be read: {what}")

    if len(data) > _MOST_BYTES:
        fail(f"it has more than {_MOST_BYTES} bytes")
    top: dict[str, Any] = parse_json(data, fail, min(len(data) // 4, _MOST_VALUES))
    if not isinstance(top, dict) or top.get("format") != FORMAT:
        reader.fail("format", f"is not {FORMAT}: another version of collc wrote this library, or none")
    reader.table(top, "", (*_TOP, "gpus", "allocations", "loaded"), ("device_code", "counters"))
    _fields(reader, top, "", {**_TOP, "gpus": "[text]"} | ({"counters": "truth"} if "counters" in top else {}))
    if top["target"] not in ("host", "cuda"):
        reader.fail("target", "expected host or cuda")
    reader.table(top["loaded"], "loaded", PARTS)
    _fields(reader, top["loaded"], "loaded.", dict.fromkeys(PARTS, "text"))
    for i, one in enumerate(_rows(reader, top["allocations"], "allocations", (*_ALLOCATION, "programs"))):
        place = f"allocations[{i}]."
        _fields(reader, one, place, _ALLOCATION)
        for j, row in enumerate(_rows(reader, one["programs"], f"{place}programs", tuple(_PROGRAM))):
            _fields(reader, row, f"{place}programs[{j}].", _PROGRAM)
    for i, row in enumerate(_rows(reader, top.get("device_code", []), "device_code", tuple(_DEVICE))):
        _fields(reader, row, f"device_code[{i}].", _DEVICE)
    if not top["allocations"]:
        reader.fail("allocations", "there are none")
    return top


def _rows(reader: Reader, value: object, place: str, keys: tuple[str, ...]) -> list[Mapping[str, Any]]:
    return reader.items(value, place, lambda o, p, _: reader.table(o, p, keys))


def _fields(reader: Reader, table: Mapping[str, Any], place: str, kinds: Mapping[str, str]) -> None:
    for key, kind in kinds.items():
        _field(reader, table[key], place + key, kind)


def _field(reader: Reader, value: object, place: str, kind: str) -> None:
    if kind.endswith("?"):
        reader.optional(value, place, lambda o, p: _field(reader, o, p, kind[:-1]))
    elif kind.startswith("["):
        reader.items(value, place, lambda o, p, _: _field(reader, o, p, kind[1:-1]))
    elif kind == "number":
        if not 0 <= reader.integer(value, place) < 1 << 64:
            reader.fail(place, "expected a number of 64 bits")
    else:
        (reader.text if kind == "text" else reader.boolean)(value, place)


def no_digests() -> dict[str, str]:
    """What stands in a manifest until its library is linked."""
    return dict.fromkeys(PARTS, _BLANK)


def digests_text(digests: Mapping[str, str]) -> bytes:
    """The digests as they stand in a manifest, all of one length."""
    return json.dumps({"loaded": dict(digests)}, indent=1)[2:-2].encode("ascii")


def blank_digests(data: bytes, digests: Mapping[str, str], path: Path) -> tuple[int, int]:
    """From and to which byte of a manifest its digests stand."""
    text = digests_text(digests)
    if not all(re.fullmatch("[0-9a-f]{64}", value) for value in digests.values()) or data.count(text) != 1:
        raise RunError("its manifest does not say once what was loaded of it when it was built", where=str(path))
    at = data.index(text)
    return at, at + len(text)
