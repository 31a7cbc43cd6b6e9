"""Divides the time of a case into waiting, copying and reducing, for each channel."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collc.errors import UsageError

VARIABLE = "COLLC_BREAKDOWN"  # must be set when the communicator is created
_MOST_CHANNELS = 1024
Times = list[tuple[int, int, int]]


@dataclass(frozen=True)
class ChannelShare:
    """The times of one channel in a case, in microseconds per call, averaged over the ranks."""

    channel: int
    waiting_us: float
    copying_us: float
    reducing_us: float


def check_counts(library: Path, manifest: Mapping[str, Any]) -> None:
    """Checks that a library can measure the parts of its time: always on the host, on CUDA if kernels have counters.

    Raises:
        UsageError: the kernels of the library have no counters.
    """
    if manifest["target"] == "cuda" and not manifest.get("counters"):
        raise UsageError(
            "the kernels of this library have no counters",
            where=str(library),
            hint="build it with `collc compile TOPO --target cuda --counters`",
        )


def read_times(lib: ctypes.CDLL, comm: ctypes.c_void_p) -> Times:
    """Returns (waiting, copying, reducing) in nanoseconds for each channel, since the communicator was created.

    Returns an empty list if the library has no counters.
    """
    ask = getattr(lib, "collc_breakdown", None)
    if ask is None:
        return []
    ask.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint32]
    ask.restype = ctypes.c_uint32
    values = (ctypes.c_uint64 * (3 * _MOST_CHANNELS))()
    count = min(ask(comm, values, _MOST_CHANNELS), _MOST_CHANNELS)
    return [(values[3 * c], values[3 * c + 1], values[3 * c + 2]) for c in range(count)]


def since(before: Times, after: Times) -> Times:
    """Returns the times between two reads; zeros for channels that ran nothing between them."""
    padded = before + [(0, 0, 0)] * (len(after) - len(before))
    return [(b[0] - a[0], b[1] - a[1], b[2] - a[2]) for a, b in zip(padded, after, strict=True)]


def shares(answers: Sequence[dict[str, Any]], calls: int) -> list[ChannelShare]:
    """Returns one row for each active channel from the ranks' answers."""
    found = []
    for channel in range(max(len(answer["times"]) for answer in answers)):
        rows = [answer["times"][channel] for answer in answers if channel < len(answer["times"])]
        waiting, copying, reducing = (sum(row[i] for row in rows) / len(answers) / calls / 1e3 for i in range(3))
        if waiting or copying or reducing:
            found.append(ChannelShare(channel, waiting, copying, reducing))
    return found


def show(found: Sequence[ChannelShare]) -> list[str]:
    """Returns a comment line for each channel, in the style of nccl-tests."""
    lines = []
    for one in found:
        total = one.waiting_us + one.copying_us + one.reducing_us or 1.0
        parts = (
            f"{name} {value:.4g} us ({value / total:.0%})"
            for name, value in (
                ("waiting", one.waiting_us),
                ("copying", one.copying_us),
                ("reducing", one.reducing_us),
            )
        )
        lines.append(f"#   channel {one.channel}: " + ", ".join(parts))
    return lines
