"""Prints version, path and name of the first of some libraries that is a network plugin of NCCL; in its own process."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress


class _Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def main(oldest: int, newest: int, names: list[str]) -> None:
    """Tries `names`, as dlopen takes them; 0 as the version where none of them is one that can be used."""
    for name in names:
        with suppress(OSError):
            library = ctypes.CDLL(name)
            for version in range(newest, oldest - 1, -1):
                with suppress(ValueError):
                    # A table begins with the plugin's own name.
                    own = ctypes.c_char_p.in_dll(library, f"ncclNetPlugin_v{version}")
                    info = _Info()
                    ctypes.CDLL(None).dladdr(ctypes.byref(own), ctypes.byref(info))
                    path, called = ((text or b"").decode(errors="replace") for text in (info.name, own.value))
                    sys.stdout.write(f"{version}\n{path or name}\n{called}\n")
                    return
            sys.stdout.write(f"0\n{name}\n\n")
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
