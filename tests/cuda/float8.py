"""8-bit floats by their definition, apart from any library: the value of every byte, and the byte next to a value.

OCP 8-bit Floating Point Specification (OFP8): E4M3 has no infinity and one NaN per sign, E5M2 is a short IEEE format.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Float8:
    name: str
    mantissa: int
    bias: int
    first_special: int  # of the patterns without a sign

    @cached_property
    def values(self) -> Array:
        """The value of every byte, in double precision."""
        found = []
        for byte in range(256):
            pattern = byte & 0x7F
            exponent, fraction = pattern >> self.mantissa, pattern & ((1 << self.mantissa) - 1)
            if pattern >= self.first_special:
                value = np.inf if self.name == "e5m2" and fraction == 0 else np.nan
            elif exponent == 0:
                value = fraction * 2.0 ** (1 - self.bias - self.mantissa)
            else:
                value = (1 + fraction / (1 << self.mantissa)) * 2.0 ** (exponent - self.bias)
            found.append(-value if byte & 0x80 else value)
        return np.array(found)

    def nearest(self, wanted: Array) -> Array:
        """The bytes of the nearest numbers, the even one of two; beyond the largest it is the largest. NaN is 0x7f."""
        numbers = self.values[: self.first_special]
        magnitude = np.abs(wanted)
        above = np.clip(np.searchsorted(numbers, magnitude), 1, len(numbers) - 1)
        below = above - 1
        low, high = magnitude - numbers[below], numbers[above] - magnitude
        picked = np.where((low < high) | ((low == high) & (below % 2 == 0)), below, above)
        signed = picked | np.where(np.signbit(wanted), 0x80, 0)
        bytes_: Array = np.where(np.isnan(wanted), 0x7F, signed).astype(np.uint8)
        return bytes_

    def same(self, got: Array, wanted: Array) -> Array:
        """Where bytes are equal, or both no number."""
        nan = np.isnan(self.values[got]) & np.isnan(self.values[wanted])
        equal: Array = (got == wanted) | nan
        return equal


E4M3 = Float8("e4m3", 3, 7, 0x7F)
E5M2 = Float8("e5m2", 2, 15, 0x7C)
FORMATS = (E4M3, E5M2)
