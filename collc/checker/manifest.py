"""Reads the manifest of a library. The result has every key with a value of its type, whatever the bytes are."""

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


def read_claims(data: bytes, path: Path) -> dict[str, Any]:
    """Returns the manifest in these bytes.

    Raises:
        RunError: the bytes are no manifest.
    """
    reader = Reader(f"{path}: manifest", RunError)

    def fail(what: str) -> Any:
        reader.fail("", f"cannot be read: {what}")

    if len(data) > _MOST_BYTES:
        fail(f"it has more than {_MOST_BYTES} bytes")
    top: dict[str, Any] = parse_json(data, fail, min(len(data) // 4, _MOST_VALUES))
    if not isinstance(top, dict) or top.get("format") != FORMAT:
        reader.fail("format", f"is not {FORMAT}: another version of collc wrote this library, or none")
    wanted, optional = _shape(reader)
    reader.read(top, "", wanted | {key: shape for key, shape in optional.items() if key in top})
    if top["target"] not in ("host", "cuda"):
        reader.fail("target", "expected host or cuda")
    if not top["allocations"]:
        reader.fail("allocations", "there are none")
    return top


def _shape(reader: Reader) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the shapes of the keys that a manifest must have, and of the keys that it may have."""
    text, truth, number = reader.text, reader.boolean, reader.number
    program: dict[str, Any] = dict.fromkeys(("collective", "plan", "proto", "why"), text)
    program |= dict.fromkeys(("optimal", "everywhere"), truth)
    program |= dict.fromkeys(("root", "min_bytes"), reader.maybe(number))
    program |= dict.fromkeys(("rate_gbps", "bound_gbps"), reader.maybe(text))
    program |= dict.fromkeys(("trees", "depth", "channels", "fifos", "lags", "plan_number", "spread"), number)

    def each(shape: Any) -> Any:
        """Returns the shape of an object with any keys."""
        return lambda obj, place: reader.read(obj, place, dict.fromkeys(obj if isinstance(obj, dict) else (), shape))

    def weighted(obj: object, place: str) -> Any:
        """Reads a program. It has weights if it uses several path classes."""
        cut = {"weights": each(number)} if isinstance(obj, dict) and "weights" in obj else {}
        return reader.read(obj, place, program | cut)

    program |= {"chunk_bytes": number, "links": each(number)}
    allocation: dict[str, Any] = {"fingerprint": text, "gpus": [text], "servers": [text], "programs": [weighted]}
    sizes = ("slot_bytes", "fifo_bytes", "gpu_bytes", "host_bytes", "server_bytes")
    allocation |= dict.fromkeys(("nranks", "gpu_sets", "slots", *sizes), number)
    allocation["host_pairs"] = [text]
    top: dict[str, Any] = dict.fromkeys(("format", "name", "collc", "target", "build_id", "compiler"), text)
    top |= {"gpus": [text], "allocations": [allocation], "loaded": dict.fromkeys(PARTS, text), "sources": each(text)}
    optional = {"counters": truth, "direct": truth, "specialised": [text], "states": [text]}
    return top, optional | {"device_code": [dict.fromkeys(("code", "compiler", "driver"), text)]}


def zero_digests() -> dict[str, str]:
    """Returns the digests of a manifest before its library is linked: zeros."""
    return dict.fromkeys(PARTS, _BLANK)


def digests_text(digests: Mapping[str, str]) -> bytes:
    """Returns the text of digests in a manifest. Its length does not depend on their values."""
    return json.dumps({"loaded": dict(digests)}, indent=1)[2:-2].encode("ascii")


def blank_digests(data: bytes, digests: Mapping[str, str], path: Path) -> tuple[int, int]:
    """Returns the first byte of the digests in a manifest, and the byte after the last one.

    Raises:
        RunError: the digests are malformed or do not occur exactly once.
    """
    text = digests_text(digests)
    if not all(re.fullmatch("[0-9a-f]{64}", value) for value in digests.values()) or data.count(text) != 1:
        raise RunError("its manifest does not contain the digests of its loaded parts exactly once", where=str(path))
    at = data.index(text)
    return at, at + len(text)
