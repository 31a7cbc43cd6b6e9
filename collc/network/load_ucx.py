"""Loads UCX and prints its version and path. This is a script for a separate process."""

from __future__ import annotations

import ctypes
import sys


class _Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def main(name: str) -> None:
    """Loads the library `name`, an argument of dlopen."""
    library = ctypes.CDLL(name)
    numbers = [ctypes.c_uint() for _ in range(3)]
    library.ucp_get_version(*map(ctypes.byref, numbers))
    info = _Info()
    if not ctypes.CDLL(None).dladdr(library.ucp_get_version, ctypes.byref(info)):
        raise OSError("dladdr")
    sys.stdout.write(f"{'.'.join(str(number.value) for number in numbers)} {(info.name or b'').decode()}\n")


if __name__ == "__main__":
    main(sys.argv[1])
