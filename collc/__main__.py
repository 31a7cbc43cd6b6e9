"""Runs the command line for `python -m collc`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

# `-m` puts the current folder before Python's library. Remove it, because collc is already imported.
with suppress(FileNotFoundError):  # the current folder does not exist any more
    if not sys.flags.safe_path and sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd()):
        del sys.path[0]

from collc.cli import main

main()
