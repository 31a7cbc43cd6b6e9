"""Checks that the buffers of a run fit in the memory of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from collc.errors import UsageError


def memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Returns the bytes of this machine's memory, or of this container's if `limit` is smaller.

    Args:
        limit: the file with the container's limit.
    """
    held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        text = limit.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return held
    return min(held, int(text)) if text.isdecimal() else held


def check_memory(needed: int, where: str) -> None:
    """Checks that buffers can fit, because the kernel would otherwise kill some process.

    Args:
        needed: the bytes of all ranks' buffers at the largest size.

    Raises:
        UsageError: the whole memory of the machine, or of this container, is smaller.
    """
    held = memory()
    if needed > held:
        gigabytes = f"{needed / 1e9:.0f} GB, and this machine has {held / 1e9:.0f} GB"
        raise UsageError(f"the largest buffers of all ranks take {gigabytes}", where=where, hint="choose a smaller -e")
