"""The command line: one file per command, thin over the library."""

from __future__ import annotations

from collc.cli.app import main

__all__ = ["main"]
