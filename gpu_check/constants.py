"""Writes the measurements as a file of parameters for `collc simulate` and `collc compile` (`--params`)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAME = "measured-params.json"
# A copy reads and writes each byte once.
READ_AND_WRITTEN = 2


def parameters(facts: dict[str, Any], protocols: Sequence[str]) -> dict[str, Any]:
    """Returns the values of the file: those that one GPU can show, if the measurement gave a plausible number.

    The GPU generation that the file is read for supplies the others: links, the time of a host thread per call, and
    the additional time of a hop to a GPU behind a link.
    """
    found: dict[str, Any] = {}
    if _sound(facts.get("copy")):
        found["memory_gbps"] = round(READ_AND_WRITTEN * facts["copy"], 1)
    hops = {p: facts[f"hop {p}"] for p in protocols if f"hop {p}" in facts}
    starts = {p: start for p, (start, slope) in hops.items() if _sound(start) and _sound(slope)}
    # The time before the first hop that all protocols have is the launch; the rest belongs to the protocol.
    launch = min(starts.values(), default=None)
    if launch is not None:
        found["launch_us"] = round(launch, 2)
    values: dict[str, dict[str, float]] = {}
    for p in protocols:
        own: dict[str, float] = {}
        if p in starts and launch is not None:
            own["hop_us"] = round(hops[p][1], 3)
            own["start_us"] = round(starts[p] - launch, 2)
        if _sound(facts.get(f"block {p}")):
            own["block_gbps"] = round(facts[f"block {p}"], 2)
        if own:
            values[p] = own
    return {**found, **({"protocols": values} if values else {})}


def _sound(value: Any) -> bool:
    return value is not None and math.isfinite(value) and value >= 0.001


def write(facts: dict[str, Any], protocols: Sequence[str], folder: Path) -> tuple[str, str, bool]:
    """Writes the file and returns the row of the table about it: title, text, whether it is good."""
    found = parameters(facts, protocols)
    if not found:
        return "measured constants", "not run: nothing was measured", False
    card = f"{facts.get('gpu', 'a GPU')}, sm_{facts.get('sm', '?')}"
    source = f"make gpu-check on one {card}: all ranks share it, hops go through its own memory"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": "collc-params/1", "source": source, **found}, indent=1)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")
    values = found.get("protocols", {})
    whole = {"memory_gbps", "launch_us", "protocols"} <= found.keys() and all(
        {"hop_us", "block_gbps"} <= values.get(p, {}).keys() for p in protocols
    )
    return "measured constants", f"{folder / NAME}{'' if whole else ', not all of them'}", True
