"""Libraries are loaded in another process: some take signals or start threads when they are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from collc.process import python_script, run_captured

_SECONDS = 20


def said_elsewhere(script: str, *arguments: str) -> str | None:
    """What a script beside this module prints; None where it fails or takes too long."""
    try:
        # With this process's environment as it is: LD_LIBRARY_PATH says where jobs find a library.
        done = run_captured(
            python_script(Path(__file__).with_name(script), *arguments), environment=os.environ, seconds=_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
