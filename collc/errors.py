"""The errors that collc raises on purpose.

A `CollcError` is about the user's input or environment. It prints as one line: the problem, its place, and a hint. Any
other exception that escapes the library is a bug in collc. Asserts guard invariants of collc, never input.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence


class CollcError(Exception):
    """An error that a user can act on.

    Args:
        what: the problem, without a trailing full stop.
        where: the place, for example ``box.yaml:12`` or ``channel 3, rank 1, step 2``.
        hint: the remedy.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what = _one_line(what)
        self.where = None if where is None else _one_line(where)
        self.hint = None if hint is None else _one_line(hint)
        super().__init__(str(self))

    def say_again(self, change: Callable[[str], str]) -> None:
        """Changes the words of the message, for example from options of a command to parameters of a function."""
        self.what = change(self.what)
        self.where = None if self.where is None else change(self.where)
        self.hint = None if self.hint is None else change(self.hint)
        self.args = (str(self),)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} ({self.hint})" if self.hint else text


class UsageError(CollcError):
    """The user asks for something that does not exist, or for options that do not fit together."""

    exit_code = 2


class TopologyError(CollcError):
    """A topology, a dump of one, or an allocation cannot be read or is inconsistent."""


class PackingError(CollcError):
    """No packing exists, or a solver failed."""


class CertificateError(CollcError):
    """A plan is wrong: a load, a tree, a weight or a bound differs from the plan's claim."""


class IRError(CollcError):
    """A program is malformed or does not compute its collective."""


class BuildError(CollcError):
    """A compiler is missing or failed."""


class RunError(CollcError):
    """A library cannot be loaded, run or inspected."""


# Hints for errors of the operating system.
_HINTS = {
    errno.ENOENT: "check the name",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "a part of the name before the last is a file",
    errno.EACCES: "its owner can allow it with chmod",
    errno.ENOSPC: "make room, or choose another disk",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def of_exception(error: BaseException) -> CollcError:
    """Returns an error of the operating system, of an encoding or of memory as a `CollcError`."""
    if isinstance(error, OSError):
        where = str(error.filename) if error.filename else None
        return CollcError(error.strerror or str(error), where=where, hint=_HINTS.get(error.errno or 0))
    if isinstance(error, MemoryError | RecursionError):
        return CollcError(f"the input is too large for this machine ({type(error).__name__})")
    return CollcError(str(error))


def first_few(names: Sequence[str], most: int) -> str:
    """Returns a text such as ``a, b and 3 more``: the first `most` names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def visible(text: str, keep: str = "") -> str:
    """Returns `text` with backslash escapes for characters that a terminal would obey or not show.

    These are all characters that `str.isprintable` rejects: controls (C0, C1, DEL), formats (bidi overrides and
    isolates, marks, zero-width characters), line and paragraph separators, surrogates of undecodable bytes.

    Args:
        keep: characters to leave as they are, such as a newline.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def _one_line(text: str) -> str:
    """Returns a text as one line of at most 500 characters, even if hostile input has control characters."""
    line = visible(text)
    return line if len(line) <= 500 else line[:497] + "..."
