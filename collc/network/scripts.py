"""Runs scripts that load libraries in another process, because some libraries handle signals or start threads."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from collc.process import python_script, run_captured

_SECONDS = 20


def script_output(script: str, *arguments: str) -> str | None:
    """Returns what a script of this folder prints; None if it fails or takes longer than 20 s."""
    try:
        # The script gets this process's environment, because LD_LIBRARY_PATH names the folders of libraries.
        done = run_captured(
            python_script(Path(__file__).with_name(script), *arguments), environment=os.environ, seconds=_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
