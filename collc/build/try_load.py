"""Opens a shared library in a separate process: ``try_load.py LIBRARY``.

This is a separate program that uses only the standard library. If it cannot open the library, it prints the reason and
ends with status 1.
"""

from __future__ import annotations

import ctypes
import sys


def main(library: str) -> None:
    """Opens the library, which runs its constructors."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1])
