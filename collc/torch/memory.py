"""Reads the memory of another process, if the kernel allows it (process_vm_readv)."""

from __future__ import annotations

import ctypes
import os

_MOST = 1 << 30  # one call moves no more than 0x7ffff000 bytes


class _Span(ctypes.Structure):
    """The C type `struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_read = getattr(ctypes.CDLL(None), "process_vm_readv", None)
if _read is not None:
    _pointer = ctypes.POINTER(_Span)
    _read.argtypes = [ctypes.c_int, _pointer, ctypes.c_ulong, _pointer, ctypes.c_ulong, ctypes.c_ulong]
    _read.restype = ctypes.c_ssize_t


def read_memory(process: int, address: int, into: int, count: int) -> bool:
    """Copies `count` bytes at `address` of another process to `into`. The GIL is released meanwhile.

    Returns:
        False if the kernel refuses, or the process or its memory is gone. A part of `into` may then be overwritten.
    """
    done = 0
    while done < count:
        length = min(_MOST, count - done)
        here, there = _Span(into + done, length), _Span(address + done, length)
        moved = _read(process, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) if _read else -1
        if moved <= 0:
            return False
        done += moved
    return True


def watch_process(process: int) -> int | None:
    """Returns a descriptor that becomes readable when the process ends; None if the system has none."""
    try:
        return os.pidfd_open(process)
    except (OSError, AttributeError):
        return None
