"""Reads input files that users name: regular files of a limited size. Other files are refused with one line."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from collc.errors import CollcError

# A text and its decoded copy are in memory at once; plans and programs of 1,024 ranks have 20 MB.
MAX_TEXT_BYTES = 64 << 20
_KINDS = {
    stat.S_IFDIR: ("a folder", "name a file in it"),
    stat.S_IFIFO: ("a pipe", "write what comes out of it to a file first"),
    stat.S_IFCHR: ("a device", "name a file"),
    stat.S_IFBLK: ("a device", "name a file"),
    stat.S_IFSOCK: ("a socket", "name a file"),
}


def open_input(path: Path, *, limit: int | None = None) -> BinaryIO:
    """Opens a regular file for reading.

    Other kinds of files are refused without waiting for them or reading them: a pipe may never send a byte, and a
    device may never end.

    Args:
        limit: the maximum size in bytes.

    Raises:
        CollcError: the file is of another kind, or larger.
        OSError: it cannot be opened.
    """
    # O_NONBLOCK: opening a pipe does not wait for its writer. O_NOCTTY: a terminal does not become the controlling
    # terminal of this process.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        # ENXIO: the file cannot be opened, such as a socket or a terminal that this process does not have.
        with suppress(OSError):
            kind = stat.S_IFMT(path.stat().st_mode)
            if kind in _KINDS and error.errno == errno.ENXIO:
                raise _refusal(path, kind) from None
        raise
    except ValueError as error:  # a NUL in the name
        raise CollcError(f"is not a valid file name: {error}", where=str(path), hint="check the name") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _refusal(path, stat.S_IFMT(status.st_mode))
        if limit is not None and status.st_size > limit:
            raise _too_large(path, limit)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_input(path: Path, *, limit: int) -> bytes:
    """Returns the bytes of a regular file, at most `limit`; raises the errors of `open_input`."""
    with open_input(path, limit=limit) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise CollcError(
                f"cannot be read: {error.strerror}", where=str(path), hint="is it the right file?"
            ) from None
    if len(data) > limit:  # the file grew, or reports no size, as files in /proc
        raise _too_large(path, limit)
    return data


def read_text(path: Path, *, limit: int = MAX_TEXT_BYTES) -> str:
    """Returns a user's text file: UTF-8, or UTF-16 with a byte order mark, as PowerShell redirects output.

    Raises:
        CollcError: it is not a regular file, is larger than `limit` bytes, or is no such text.
    """
    data = read_input(path, limit=limit)
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"is not text: byte 0x{data[error.start]:02x} at {error.start} is not UTF-{16 if wide else 8}"
        raise CollcError(problem, where=str(path), hint="is it the right file?") from None


def _refusal(path: Path, kind: int) -> CollcError:
    what, hint = _KINDS.get(kind, ("a special file", "name a file"))
    return CollcError(f"is {what}, not a regular file", where=str(path), hint=hint)


def _too_large(path: Path, limit: int) -> CollcError:
    size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
    return CollcError(f"is larger than {size}", where=str(path), hint="is it the right file?")
