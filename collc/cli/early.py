"""Ctrl-C before a command has begun; imports next to nothing, since what it imports cannot be interrupted so yet."""

from __future__ import annotations

import os


def leave(number: int, frame: object) -> None:
    """Ctrl-C while the modules are read: nothing has begun, and a module written in C may swallow exceptions."""
    os.write(2, b"collc: interrupted\n")  # a handler may interrupt a write to a stream
    os._exit(130)
