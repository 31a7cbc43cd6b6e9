"""Whether the buffers of a run fit in this machine's memory."""

from __future__ import annotations

import os
from pathlib import Path

from collc.errors import UsageError


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
