"""Which names a vertex, server or topology may have, and exact decimal numbers.

Names travel into file names, generated comments and command lines, so that only letters, digits and ``_ . : + @ -`` are
allowed; GPU bus ids and UUIDs fit. A name that is a number or a range would be ambiguous in ``--gpus 0-3``.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_NAME = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+@-]*")
_NUMERIC = re.compile(r"[0-9]+(-[0-9]+)?")
_DECIMAL = re.compile(r"([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/()+-]*")

MIN_GBPS = Fraction(1, 10**6)
MAX_GBPS = Fraction(10**7)


def name_problem(name: str) -> str | None:
    """Returns why `name` cannot be a name, or None if it can."""
    if not name:
        return "is empty"
    if len(name) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if not _NAME.fullmatch(name):
        return "may only have letters, digits and _ . : + @ - and must begin with a letter or digit"
    if _NUMERIC.fullmatch(name):
        return "is a number or a range, which would be ambiguous in --gpus"
    return None


def model_problem(text: str) -> str | None:
    """Returns why `text` cannot be the name of a GPU model, or None. Unlike other names, it may have spaces."""
    if len(text) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if not _MODEL.fullmatch(text):
        return "may only have letters, digits, spaces and . _ / ( ) + - and must begin with a letter or digit"
    return None


def parse_decimal(text: str) -> Fraction | None:
    """Returns the exact value of an unsigned decimal text such as ``25``, ``12.5`` or ``1e-3``; else None."""
    return Fraction(text) if _DECIMAL.fullmatch(text) else None


def decimal_text(value: Fraction) -> str | None:
    """Returns the exact decimal text of a non-negative value; None if its denominator has primes other than 2 and 5."""
    digits = 0
    denominator = value.denominator
    for prime in (2, 5):
        power = 0
        while denominator % prime == 0:
            denominator //= prime
            power += 1
        digits = max(digits, power)
    if denominator != 1:
        return None
    if digits == 0:
        return str(value.numerator)
    scaled = str(value.numerator * 10**digits // value.denominator).rjust(digits + 1, "0")
    return f"{scaled[:-digits]}.{scaled[-digits:]}"
