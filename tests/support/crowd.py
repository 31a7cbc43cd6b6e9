"""Crowds of strangers at the listener of an id, as processes beside a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = Path(__file__).parent.parent / "runtime" / "strangers.py"
_AS_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


@contextmanager
def crowd(unique: str, how: str, count: int, groups: int = 2, finished: bool = False) -> Iterator[None]:
    """Processes that make `count` connections each; of another user where this one may do so."""
    command = [sys.executable]
    if os.getuid() == 0 and shutil.which("setpriv") and os.access("/usr/bin/python3", os.X_OK):
        command = [*_AS_NOBODY, "/usr/bin/python3"]
    source = _PROGRAM.read_text(encoding="utf-8")  # the other user may not read our folders
    processes = [
        subprocess.Popen(
            [*command, "-c", source, unique, how, str(count), "300"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(groups)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            if finished:
                assert process.stdout.readline() == "made all\n"
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()
