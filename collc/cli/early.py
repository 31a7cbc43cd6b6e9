"""Ctrl-C before a command has begun; imports next to nothing, since what it imports cannot be interrupted so yet."""

from __future__ import annotations

import os
import sys


def leave(number: int, frame: object) -> None:
    """Ctrl-C while the modules are read: nothing has begun, and a module written in C may swallow exceptions."""
    sys.stderr.write("collc: interrupted\n")
    sys.stderr.flush()
    os._exit(130)
