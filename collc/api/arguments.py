"""Checks arguments. A wrong one raises `UsageError`, which names the parameter, its value and the expected values."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from fractions import Fraction
from functools import wraps
from numbers import Integral, Rational
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

from collc.collectives.model import Collective
from collc.collectives.sizes import parse_size
from collc.errors import CollcError, UsageError, of_exception

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_OPTION = re.compile(r"(?<![\w-])--?([a-z][a-z-]*)")
# Options of the command line with another parameter name here.
_RENAMED = {"e": "size", "b": "size", "proto": "protocol"}
# Options of `collc compile` with another parameter name in functions that have this parameter.
_PLURAL = {"plan": "plans", "ir": "programs", "collective": "collectives", "root": "roots"}


def answering(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Returns a function that raises `CollcError` instead of system errors.

    Its messages name parameters (`gpus`) instead of options of the command line (`--gpus`).
    """
    parameters = set(inspect.signature(function).parameters)

    def renamed(match: re.Match[str]) -> str:
        name = _RENAMED.get(match[1], match[1].replace("-", "_"))
        if name not in parameters and _PLURAL.get(match[1]) in parameters:
            name = _PLURAL[match[1]]
        return name if name in parameters or match[1] in _RENAMED else match[0]

    @wraps(function)
    def answered(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except CollcError as error:
            error.say_again(lambda text: _OPTION.sub(renamed, text))
            raise
        except (OSError, UnicodeError, MemoryError, RecursionError) as error:
            raise of_exception(error) from error

    return answered


def wrong(name: str, value: object, expected: str) -> NoReturn:
    """Raises UsageError for an argument of the wrong type."""
    raise UsageError(f"expected {expected}, not {_short(value)}", where=name)


def _short(value: object) -> str:
    kind = type(value).__name__
    shown = repr(value) if isinstance(value, str | int | float | bool) else ""
    return f"{kind} {shown[:40]}" if shown else ("None" if value is None else kind)


def a_flag(name: str, value: object) -> bool:
    """Returns the value if it is True or False."""
    if not isinstance(value, bool):
        wrong(name, value, "True or False")
    return value


def a_number(name: str, value: object, least: int, most: int) -> int:
    """Returns a whole number (also one of numpy) from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        wrong(name, value, "a whole number")
    if not least <= int(value) <= most:
        raise UsageError(f"{str(int(value))[:40]} is not from {least} to {most}", where=name)
    return int(value)


def a_text(name: str, value: object) -> str:
    """Returns the value if it is a text that is not empty."""
    if not isinstance(value, str):
        wrong(name, value, "a text")
    if not value:
        raise UsageError("the text is empty", where=name)
    return value


def one_of(name: str, value: object, known: Collection[str]) -> str:
    """Returns the value if it is one of some words."""
    if a_text(name, value) not in known:
        raise UsageError(f"no {name} is called {value!r:.60}", where=name, hint=f"choose one of {', '.join(known)}")
    return str(value)


def a_path(name: str, value: object) -> Path:
    """Returns the path of a text or a path object."""
    if not isinstance(value, str | os.PathLike):
        wrong(name, value, "a path")
    text = os.fspath(value)
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"{text!r:.60} is not a path", where=name)
    return Path(text)


def a_share(name: str, value: object) -> Fraction:
    """Returns an exact share from 0 to below 1 of a Fraction, a whole number, or a text such as 0.05 or 1/20."""
    if isinstance(value, bool) or not isinstance(value, str | Rational):
        wrong(name, value, "a Fraction, or a text such as '0.05', which is exact")
    if isinstance(value, str) and not re.fullmatch(r"\d{0,30}(\.\d{1,30})?|\d{1,30}/\d{1,30}", value):
        raise UsageError(f"{value!r:.60} is not a share such as 0.05 or 1/20", where=name)
    try:
        share = Fraction(value)
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"{value!r:.60} is not a share such as 0.05 or 1/20", where=name) from None
    if not 0 <= share < 1:
        raise UsageError(f"{str(value)[:40]} is not between 0 and 1", where=name)
    return share


def a_collective(name: str, value: object, among: Iterable[Collective] = Collective) -> Collective:
    """Returns the collective of a `Collective` or of its name in nccl-tests."""
    names = [c.value for c in among]
    if isinstance(value, Collective):
        value = value.value
    if not isinstance(value, str):
        wrong(name, value, "a collective's name")
    if value not in names:
        raise UsageError(
            f"no collective here is called {value!r:.60}", where=name, hint=f"choose from {', '.join(names)}"
        )
    return Collective(value)


def some(name: str, value: object, what: str) -> Sequence[Any]:
    """Returns the items of an iterable that is not empty. A text does not count as one.

    Args:
        what: the noun of the items, for errors.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        wrong(name, value, f"a list of {what}")
    found = list(value)
    if not found:
        raise UsageError("the list is empty", where=name, hint=f"list {what}")
    return found


def gpu_list(name: str, value: object) -> str | None:
    """Returns GPUs in rank order as text for the command line, from ``"0,1,4,7"`` or a list of numbers and names."""
    if value is None or isinstance(value, str):
        return None if value is None else a_text(name, value)
    if isinstance(value, Set | Mapping):
        # The order of ranks would depend on hashes, which differ in each run for names.
        wrong(name, value, "a list, whose order is that of the ranks")
    words = []
    for item in some(name, value, "GPU numbers or names, or a text such as '0,1,4,7'"):
        words.append(a_text(name, item) if isinstance(item, str) else str(a_number(name, item, 0, 10**9 - 1)))
    return ",".join(words)


def class_list(name: str, value: object) -> str | None:
    """Returns classes of links as text for the command line, from ``"nvlink,pcie"``, ``"all"`` or a list of names."""
    if value is None or isinstance(value, str):
        return None if value is None else a_text(name, value)
    return ",".join(a_text(name, item) for item in some(name, value, "link classes, or a text such as 'nvlink,pcie'"))


def size_list(name: str, value: object) -> list[int]:
    """Returns sizes in bytes, ascending and without repetition, from numbers and texts such as 64K."""
    found = set()
    for item in some(name, value, "sizes"):
        if isinstance(item, str):
            size = parse_size(item)
            if size is None:
                raise UsageError(f"{item!r:.60} is not a size such as 8, 64K or 16M", where=name)
        else:
            size = a_number(name, item, 0, 1 << 43)
        if not 1 <= size <= 1 << 43:
            raise UsageError(f"{str(item)[:40]} is not a size from 1 byte to 8 TiB", where=name)
        found.add(size)
    return sorted(found)
