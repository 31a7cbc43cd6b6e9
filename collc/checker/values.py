"""JSON, read strictly: what `json.loads` lets pass is refused, and the reader of each value says what it must be."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from fractions import Fraction
from typing import Any, NoReturn, TypeVar

from collc.errors import CollcError
from collc.limits import spend

_FRACTION = re.compile(r"[0-9]{1,40}(/[1-9][0-9]{0,39})?")
_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)


def parse_json(text: str | bytes, fail: Callable[[str], NoReturn], most_values: int | None = None) -> Any:
    """The value of a JSON text. Calls `fail` for a key given twice, NaN, endless nesting, more than `most_values`."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(items)
        if len(table) != len(items):
            twice = next(key for key, count in Counter(key for key, _ in items).items() if count > 1)
            fail(f"the key {short(twice)} is given twice in one object")
        return table

    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            fail(f"not UTF-8 at byte {error.start}")
    values = sum(map(text.count, ",[{"))
    if most_values is not None and values > most_values:
        fail(f"more than {most_values} values")
    spend(8 * values)
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=lambda name: fail(f"{name} is no JSON"))
    except RecursionError:
        fail("nested too deeply")
    except ValueError as error:
        fail(f"not JSON: {error}")


class Reader:
    """Every method takes a JSON value and its place, and returns the value typed or raises `error` with the place."""

    def __init__(self, file: str, error: type[CollcError]) -> None:
        self._file = file
        self._error = error

    def fail(self, place: str, what: str) -> NoReturn:
        raise self._error(what, where=f"{self._file}: {place}" if place else self._file)

    def table(
        self, obj: object, place: str, keys: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> Mapping[str, Any]:
        if not isinstance(obj, dict):
            self.fail(place, f"expected an object, got {short(obj)}")
        for key in obj:
            if key not in keys and key not in optional:
                self.fail(place, f"unknown key {short(key)}")
        for key in keys:
            if key not in obj:
                self.fail(place, f"the key {key!r} is missing")
        return obj

    def items(self, obj: object, place: str, read: Callable[[object, str, int], _T]) -> list[_T]:
        if not isinstance(obj, list):
            self.fail(place, f"expected a list, got {short(obj)}")
        return [read(item, f"{place}[{i}]", i) for i, item in enumerate(obj)]

    def optional(self, obj: object, place: str, read: Callable[[object, str], _T]) -> _T | None:
        return None if obj is None else read(obj, place)

    def text(self, obj: object, place: str) -> str:
        if not isinstance(obj, str):
            self.fail(place, f"expected text, got {short(obj)}")
        return obj

    def boolean(self, obj: object, place: str) -> bool:
        if not isinstance(obj, bool):
            self.fail(place, f"expected true or false, got {short(obj)}")
        return obj

    def integer(self, obj: object, place: str) -> int:
        if not isinstance(obj, int) or isinstance(obj, bool):
            self.fail(place, f"expected an integer, got {short(obj)}")
        return obj

    def fraction(self, obj: object, place: str) -> Fraction:
        if not isinstance(obj, str) or not _FRACTION.fullmatch(obj):
            self.fail(place, f"expected a fraction as text, got {short(obj)}")
        return Fraction(obj)

    def enum(self, obj: object, place: str, kind: type[_E]) -> _E:
        values = {member.value: member for member in kind}
        if not isinstance(obj, str) or obj not in values:
            self.fail(place, f"expected one of {', '.join(values)}, got {short(obj)}")
        return values[obj]


def short(value: object) -> str:
    """A value for a message: its start only."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a huge integer"
    return text if len(text) <= 40 else text[:37] + "..."
