"""What a step makes of its operands, with the rounding of both targets.

Floats of 16 and 8 bits are computed in f32, from the left, and rounded once. The maximum and the minimum of floats
are maximumNumber and minimumNumber of IEEE 754-2019: a number wins against a NaN, and +0 is larger than -0. A result
that is a NaN has all bits but the sign's set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# Combines the operands of a step, elementwise, from the left.
Reduce = Callable[[Sequence[Array]], Array]


def is_float(kind: np.dtype[Any]) -> bool:
    """Whether a type is one of numpy's floats, or bfloat16 of the package ml_dtypes, which calls it void."""
    return kind.kind in "fV"


def canonical_nan(kind: np.dtype[Any]) -> Array:
    """A NaN with all bits but the sign's set, as an array without dimensions."""
    bits = (1 << (8 * kind.itemsize - 1)) - 1
    return np.array(bits, f"u{kind.itemsize}").view(kind)


def maximum(a: Array, b: Array) -> Array:
    """The larger elements."""
    return _extreme(a, b, a > b, np.signbit(b)) if is_float(a.dtype) else np.maximum(a, b)


def minimum(a: Array, b: Array) -> Array:
    """The smaller elements."""
    return _extreme(a, b, a < b, np.signbit(a)) if is_float(a.dtype) else np.minimum(a, b)


def _extreme(a: Array, b: Array, is_first: Array, wins_as_zero: Array) -> Array:
    chosen = np.where(is_first | ((a == b) & wins_as_zero) | np.isnan(b), a, b)
    return np.where(np.isnan(chosen), canonical_nan(a.dtype), chosen)


_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": maximum,
    "min": minimum,
}
OPERATIONS = tuple(_FUNCTIONS)


def reduction(operation: str) -> Reduce:
    """Returns the function of a step that reduces by sum, prod, max or min."""
    function = _FUNCTIONS[operation]

    def combined(operands: Sequence[Array]) -> Array:
        kind = operands[0].dtype
        is_narrow = is_float(kind) and kind.itemsize < 4
        result = operands[0].astype(np.float32 if is_narrow else kind)
        for operand in operands[1:]:
            result = function(result, operand.astype(result.dtype))
        if not is_narrow:
            return result
        narrow = result.astype(kind)
        return np.where(np.isnan(narrow), canonical_nan(kind), narrow)

    return combined
