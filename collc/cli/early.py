"""Handles Ctrl-C before a command has begun. Imports almost nothing, because its imports cannot be interrupted yet."""

from __future__ import annotations

import os


def leave(number: int, frame: object) -> None:
    """Ends the process at Ctrl-C while modules are imported.

    Nothing has begun yet, and a module written in C may swallow exceptions.
    """
    os.write(2, b"collc: interrupted\n")  # a handler may interrupt a write to a stream
    os._exit(130)
