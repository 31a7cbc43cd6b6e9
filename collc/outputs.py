"""Files that a command writes at the end of long work: whether it can is asked before."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collc.errors import CollcError
from collc.process import whole


def check_output(path: Path, *, replaced: bool = True) -> None:
    """Refuses a file that could not be written.

    Args:
        replaced: the file is written under another name and renamed, so only a regular file may be there.

    Raises:
        CollcError: it is a folder, its folder is missing, or may not be written to.
    """
    where, folder = str(path), path.parent
    if path.is_dir():
        raise CollcError("cannot write: this is a folder", where=where, hint="name a file in it")
    if not folder.is_dir():
        raise CollcError(f"cannot write: there is no folder {folder}", where=where, hint="create the folder first")
    if path.exists() and not path.is_file():
        if replaced:
            raise CollcError("cannot write: this is not a regular file", where=where, hint="name another")
        return
    if not os.access(folder if replaced or not path.exists() else path, os.W_OK, effective_ids=True):
        raise CollcError("cannot write: permission denied", where=where, hint="choose another folder")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """An error of writing names the file, also where the system says none: when a disk is full."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Writes a file.

    Raises:
        OSError: with its name.
    """
    with named(path):
        path.write_text(text, encoding="utf-8")


@contextmanager
def written_aside(path: Path, mode: int) -> Iterator[Path]:
    """A new file beside `path` to write to, which then takes its place, with the rights `mode`: a reader sees the old
    bytes or the new ones, and whatever ends this leaves nothing else.

    Raises:
        OSError: it cannot be made there.
    """
    with whole(), named(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        os.close(handle)
        aside = Path(name)
    try:
        yield aside
        aside.chmod(mode)
        aside.replace(path)
    except BaseException as error:
        aside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, name):
            error.filename = str(path)
        raise
