"""The command line: one file per command, thin over the library."""

from __future__ import annotations

import sys
from typing import Any


def main(argv: list[str] | None = None) -> Any:
    """Runs the command line and exits (`collc.cli.app.main`)."""
    try:
        from collc.cli.app import main as run
    except KeyboardInterrupt:  # while the modules are read
        sys.stderr.write("collc: interrupted\n")
        sys.exit(130)
    return run(argv)


__all__ = ["main"]
