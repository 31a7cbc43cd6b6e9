"""JSON values read strictly: typed, or an error that names the place."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NoReturn, TypeVar

from collc.errors import CertificateError

_T = TypeVar("_T")
_FRACTION = re.compile(r"-?[0-9]{1,4000}(/[0-9]{1,4000})?")


class FieldReader:
    """Every method takes a JSON value and its place in `file`, and returns the value typed or raises."""

    def __init__(self, file: str) -> None:
        self._file = file

    def fail(self, place: str, what: str) -> NoReturn:
        """Raises CertificateError about `place`."""
        raise CertificateError(what, where=f"{self._file}: {place}" if place else self._file)

    def table(self, obj: object, place: str, keys: tuple[str, ...]) -> dict[str, Any]:
        """An object with exactly these keys."""
        if not isinstance(obj, dict):
            self.fail(place, f"expected an object, got {short(obj)}")
        for key in obj:
            if key not in keys:
                self.fail(place, f"unknown key {short(key)}")
        for key in keys:
            if key not in obj:
                self.fail(place, f"the key {key!r} is missing")
        return obj

    def items(self, obj: object, place: str, read: Callable[[object, str, int], _T]) -> list[_T]:
        """A list; `read` gets each item, its place and its number."""
        if not isinstance(obj, list):
            self.fail(place, f"expected a list, got {short(obj)}")
        return [read(item, f"{place}[{i}]", i) for i, item in enumerate(obj)]

    def optional(self, obj: object, place: str, read: Callable[[object, str], _T]) -> _T | None:
        """null, or what `read` makes of the value."""
        return None if obj is None else read(obj, place)

    def text(self, obj: object, place: str) -> str:
        """A string."""
        if not isinstance(obj, str):
            self.fail(place, f"expected text, got {short(obj)}")
        return obj

    def boolean(self, obj: object, place: str) -> bool:
        """true or false."""
        if not isinstance(obj, bool):
            self.fail(place, f"expected true or false, got {short(obj)}")
        return obj

    def integer(self, obj: object, place: str) -> int:
        """An integer; no float and no boolean."""
        if not isinstance(obj, int) or isinstance(obj, bool):
            self.fail(place, f"expected an integer, got {short(obj)}")
        return obj

    def fraction(self, obj: object, place: str) -> Fraction:
        """An exact fraction written as text."""
        if not isinstance(obj, str) or not _FRACTION.fullmatch(obj):
            self.fail(place, f'expected a fraction as text, such as "600/7", got {short(obj)}')
        top, _, bottom = obj.partition("/")
        if bottom and int(bottom) == 0:
            self.fail(place, "division by zero")
        return Fraction(int(top), int(bottom or 1))

    def enum(self, obj: object, place: str, kind: type[_T]) -> _T:
        """A member of an enumeration, by its value."""
        values = {member.value: member for member in kind}  # type: ignore[attr-defined]
        if not isinstance(obj, str) or obj not in values:
            self.fail(place, f"expected one of {', '.join(values)}, got {short(obj)}")
        found: _T = values[obj]
        return found


def short(value: object) -> str:
    """A value for a message: its start only."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a huge integer"
    return text if len(text) <= 40 else text[:37] + "..."
