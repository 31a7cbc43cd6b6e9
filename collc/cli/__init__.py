"""The command line: one file per command, thin over the library."""

from __future__ import annotations

import signal

from collc.cli.early import leave

TYPE_CHECKING = False  # mypy takes it as true; importing typing takes longer than importing this module
if TYPE_CHECKING:
    from typing import Any


def main(argv: list[str] | None = None) -> Any:
    """Runs the command line and exits (`collc.cli.app.main`)."""
    if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    from collc.cli.app import main as run

    return run(argv)


__all__ = ["main"]
