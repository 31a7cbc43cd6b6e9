"""The sizes of a run, as nccl-tests' -b, -e, -f and -i give them, and whether this machine can hold their buffers."""

from __future__ import annotations

import os
from pathlib import Path

from collc.errors import UsageError

MOST_BYTES = 1 << 43
MOST_SIZES = 10_000


def size_series(least: int, most: int, factor: int, step: int = 0) -> list[int]:
    """Sizes from `least` to `most`: times the factor, or plus the step where the factor is 1.

    Raises:
        UsageError: there is none, or there are too many, or they never end.
    """
    if least < 0 or most < least:
        raise UsageError(f"-e {most} is below -b {least}", hint="-b is the smallest size and -e the largest")
    if most > MOST_BYTES:
        raise UsageError(f"-e {most} is beyond 8 TiB", hint="choose a smaller -e")
    if factor < 1:
        raise UsageError(f"-f {factor} makes no larger sizes", hint="use -f 2 or more, or -f 1 with -i BYTES")
    if factor > 1 and least == 0:
        raise UsageError("-b 0 cannot grow by a factor", hint="use -b 8, or -f 1 -i BYTES where the command has it")
    if factor == 1 and step < 1:
        raise UsageError("sizes that grow by -f 1 and no step never end", hint="use -f 2 or more, or -i BYTES")
    if factor == 1 and (most - least) // step >= MOST_SIZES:
        raise UsageError(f"{(most - least) // step + 1} sizes are too many", hint="use a larger -i or a factor -f")
    found = []
    size = least
    while size <= most:
        found.append(size)
        size = size * factor if factor > 1 else size + step
    return found


def memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of this machine's memory, or of this container's where `limit` says that it may have less."""
    held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        text = limit.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return held
    return min(held, int(text)) if text.isdecimal() else held


def check_memory(needed: int, where: str) -> None:
    """Refuses what certainly does not fit, before the kernel ends some process for it.

    Args:
        needed: bytes of all ranks' buffers at the largest size.

    Raises:
        UsageError: the machine's whole memory, or this container's, is less.
    """
    held = memory()
    if needed > held:
        gigabytes = f"{needed / 1e9:.0f} GB, and this machine has {held / 1e9:.0f} GB"
        raise UsageError(f"the largest buffers of all ranks take {gigabytes}", where=where, hint="choose a smaller -e")
