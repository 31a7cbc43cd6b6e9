"""The reduction of a step, with the rounding of both targets.

Floats of 16 and 8 bits are computed in f32, from left to right, and rounded once. Maximum and minimum of floats are
maximumNumber and minimumNumber of IEEE 754-2019: a number wins against a NaN, and +0 is larger than -0. A NaN result
has all bits set except the sign; only sums and products of 32 and 64 bits keep the bits that the processor gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# Combines the operands of a step elementwise, from left to right.
Reduce = Callable[[Sequence[Array]], Array]


def is_float(kind: np.dtype[Any]) -> bool:
    """Returns whether a type is a float of numpy or of ml_dtypes, some of whose types numpy lists as void ("V")."""
    return kind.kind in "fV"


def canonical_nan(kind: np.dtype[Any]) -> Array:
    """Returns the NaN with all bits set except the sign, as an array without dimensions."""
    bits = (1 << (8 * kind.itemsize - 1)) - 1
    return np.array(bits, f"u{kind.itemsize}").view(kind)


def maximum(a: Array, b: Array) -> Array:
    """Returns the larger element of each pair; see the module's docstring for NaN and zeros."""
    return _extreme(a, b, a > b, np.signbit(b)) if is_float(a.dtype) else np.maximum(a, b)


def minimum(a: Array, b: Array) -> Array:
    """Returns the smaller element of each pair; see the module's docstring for NaN and zeros."""
    return _extreme(a, b, a < b, np.signbit(a)) if is_float(a.dtype) else np.minimum(a, b)


def _extreme(a: Array, b: Array, is_first: Array, wins_as_zero: Array) -> Array:
    result = np.where(is_first | ((a == b) & wins_as_zero) | np.isnan(b), a, b)
    return np.where(np.isnan(result), canonical_nan(a.dtype), result)


_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": maximum,
    "min": minimum,
}
OPERATIONS = tuple(_FUNCTIONS)


def reduction(operation: str) -> Reduce:
    """Returns the function that a step reduces its operands with.

    Args:
        operation: a name of `OPERATIONS`.
    """
    function = _FUNCTIONS[operation]

    def reduce(operands: Sequence[Array]) -> Array:
        kind = operands[0].dtype
        is_narrow = is_float(kind) and kind.itemsize < 4
        result = operands[0].astype(np.float32 if is_narrow else kind)
        for operand in operands[1:]:
            result = function(result, operand.astype(result.dtype))
        if not is_narrow:
            return result
        narrow = result.astype(kind)
        return np.where(np.isnan(narrow), canonical_nan(kind), narrow)

    return reduce
