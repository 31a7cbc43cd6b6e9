"""Reads JSON strictly: rejects invalid texts that `json.loads` accepts, and checks the type of every value."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from itertools import repeat
from typing import Any, NoReturn, TypeVar

from collc.errors import CollcError
from collc.limits import ENTRIES, spend

_FRACTION = re.compile(r"-?[0-9]{1,4000}(/[0-9]{1,4000})?")
_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)


def parse_json(text: str | bytes, fail: Callable[[str], NoReturn], most_values: int = ENTRIES) -> Any:
    """Returns the value of a JSON text.

    Calls `fail` for invalid JSON, a repeated key, NaN, too deep nesting, or more than `most_values` values.
    """

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
    if values > most_values:
        fail(f"more than {most_values} values")
    spend(8 * values)
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=lambda name: fail(f"{name} is not JSON"))
    except RecursionError:
        fail("nested too deeply")
    except ValueError as error:
        fail(f"not JSON: {error}")


class Reader:
    """Checks JSON values. Each reading method takes a value and its place and returns the value with its type.

    If the value has another type, the method raises `error` with the place.
    """

    def __init__(self, file: str, error: type[CollcError]) -> None:
        self._file = file
        self._error = error

    def fail(self, place: str, what: str) -> NoReturn:
        raise self._error(what, where=f"{self._file}: {place}" if place else self._file)

    def read(self, obj: object, place: str, shape: Any) -> Any:
        """Returns a value of a shape.

        Args:
            shape: a reading method, a dict of shapes by key, a list of one shape for all items, or a tuple with the
                shape of each item.
        """
        if callable(shape):
            return shape(obj, place)
        if isinstance(shape, dict):
            table = self.table(obj, place, tuple(shape))
            before = f"{place}." if place else ""
            return {key: self.read(table[key], before + key, inner) for key, inner in shape.items()}
        if not isinstance(obj, list):
            self.fail(place, f"expected a list, got {short(obj)}")
        if isinstance(shape, tuple) and len(obj) != len(shape):
            self.fail(place, f"expected {len(shape)} values")
        shapes = shape if isinstance(shape, tuple) else repeat(shape[0], len(obj))
        return [
            self.read(item, f"{place}[{i}]", inner) for i, (item, inner) in enumerate(zip(obj, shapes, strict=True))
        ]

    def table(self, obj: object, place: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(obj, dict):
            self.fail(place, f"expected an object, got {short(obj)}")
        for key in obj:
            if key not in keys:
                self.fail(place, f"unknown key {short(key)}")
        for key in keys:
            if key not in obj:
                self.fail(place, f"the key {key!r} is missing")
        return obj

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

    def number(self, obj: object, place: str) -> int:
        found = self.integer(obj, place)
        if not 0 <= found < 1 << 64:
            self.fail(place, "expected a number of 64 bits")
        return found

    def fraction(self, obj: object, place: str) -> Fraction:
        if not isinstance(obj, str) or not _FRACTION.fullmatch(obj):
            self.fail(place, f'expected a fraction as text, such as "600/7", got {short(obj)}')
        top, _, bottom = obj.partition("/")
        if bottom and int(bottom) == 0:
            self.fail(place, "division by zero")
        return Fraction(int(top), int(bottom or 1))

    # These methods return reading methods.

    def maybe(self, shape: Callable[[object, str], _T]) -> Callable[[object, str], _T | None]:
        """Returns a method that reads null as None, and other values by `shape`."""
        return lambda obj, place: None if obj is None else shape(obj, place)

    def below(self, count: int, what: str) -> Callable[[object, str], int]:
        """Returns a method that reads a number below `count`. `what` names the numbered things in errors."""

        def read(obj: object, place: str) -> int:
            found = self.integer(obj, place)
            if not 0 <= found < count:
                self.fail(place, f"no {what} {short(found)}")
            return found

        return read

    def name_of(self, names: Sequence[str], what: str) -> Callable[[object, str], int]:
        """Returns a method that reads one of `names` and returns its index. `what` is the noun for errors."""
        numbers = {name: number for number, name in enumerate(names)}

        def read(obj: object, place: str) -> int:
            name = self.text(obj, place)
            if name not in numbers:
                self.fail(place, f"no {what} {short(name)}")
            return numbers[name]

        return read

    def member(self, kind: type[_E]) -> Callable[[object, str], _E]:
        """Returns a method that reads a member of an enum by its value."""
        values = {one.value: one for one in kind}

        def read(obj: object, place: str) -> _E:
            if not isinstance(obj, str) or obj not in values:
                self.fail(place, f"expected one of {', '.join(values)}, got {short(obj)}")
            return values[obj]

        return read


def short(value: object) -> str:
    """Returns a short text of a value for messages."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a huge integer"
    return text if len(text) <= 40 else text[:37] + "..."
