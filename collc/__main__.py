"""`python -m collc` is the command line."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

# `-m` puts the current folder before Python's own library. collc has been found by now.
with suppress(FileNotFoundError):  # of a folder that is gone
    if not sys.flags.safe_path and sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd()):
        del sys.path[0]

from collc.cli import main

main()
