"""Identifies this machine in the same way as the runtime."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def this_machine() -> str:
    """Returns an identifier that all processes of a machine share: a digest of `COLLC_HOSTID`, else of the boot id."""
    named = os.environ.get("COLLC_HOSTID")
    text = f"COLLC_HOSTID={named}" if named else Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return hashlib.sha256(text.encode()).hexdigest()[:16]
