"""Writes output files, and checks before long work that they can be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collc.errors import CollcError
from collc.process import whole


def check_output(path: Path, *, replaced: bool = True) -> None:
    """Checks that a file can be written.

    Args:
        replaced: the file is written under another name and renamed, so it may replace only a regular file.

    Raises:
        CollcError: it is a folder, or its folder is missing or cannot be written to.
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
    """Adds the file's name to an OSError, because some have none, for example if the disk is full."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8.

    Raises:
        OSError: it cannot be written; the error has the file's name.
    """
    with named(path):
        path.write_text(text, encoding="utf-8")


@contextmanager
def written_aside(path: Path, mode: int) -> Iterator[Path]:
    """Yields a new file next to `path`, and renames it to `path` at the end of the code inside.

    A reader of `path` sees either the old bytes or the new ones. If an exception ends the code inside, the new file is
    removed.

    Args:
        mode: the permissions of the file.

    Raises:
        OSError: the file cannot be created there.
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
