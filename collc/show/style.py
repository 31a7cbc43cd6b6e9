"""Colors and widths of static figures. page.css has the same ones.

Kinds of links have colors of Okabe and Ito's palette (2008), which color-blind people can distinguish, and dashes. The
use of a link is shown from pale to dark blue. A full link is orange, which differs in hue and in lightness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

KINDS = {
    "nvlink": "#009e73",
    "nvswitch": "#009e73",
    "xgmi": "#c4459a",
    "c2c": "#b8860b",
    "pcie": "#7d8791",
    "net": "#0072b2",
}
DASHES: dict[str, tuple[float, ...]] = {"pcie": (5, 3), "net": (9, 3), "c2c": (2, 2)}
# (smallest share of the speed, color of a link with this load)
USE = ((0.0, "#c9cfd6"), (1e-9, "#9ecae1"), (0.25, "#6baed6"), (0.5, "#3182bd"), (0.75, "#08519c"), (1.0, "#d55e00"))
USE_NAMES = ("idle", "up to 25%", "up to 50%", "up to 75%", "below 100%", "full")
LIMIT = "#f2c200"
INK, MUTED, PAPER, PANEL, BORDER = "#1b1f24", "#57606a", "#ffffff", "#f5f7f9", "#8c959f"
BOXES = {"gpu": "#e3f1dc", "switch": "#e4e8ee", "cpu": "#fbecd2", "nic": "#dcebf7"}
# The colors of curves in a ratio plot, in order.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#b8860b", "#56b4e9")


def use_step(share: float) -> int:
    """Returns the index in USE for a link that carries this share of its speed."""
    if share >= 1:
        return len(USE) - 1
    if share <= 0:
        return 0
    return 1 + min(3, math.ceil(share * 4 - 1e-12) - 1)


def width_of(gbps: Fraction | float, most: Fraction | float) -> float:
    """Returns the width of a line, 1.6 to 5, relative to the fastest link. Four times the speed is twice as wide."""
    return max(1.6, 5.0 * math.sqrt(float(gbps) / float(most))) if most else 1.6


@dataclass(frozen=True)
class Paint:
    """The color, width, dashes and marks of a link."""

    color: str
    width: float
    dash: tuple[float, ...] = ()
    limit: bool = False
    above: bool = False


def number(value: Fraction | str | float, digits: int = 4) -> str:
    """Returns a number as text: ``85.71`` for 600/7, and whole numbers exactly."""
    exact = Fraction(value)
    return str(exact.numerator) if exact.denominator == 1 else f"{float(exact):.{digits}g}"


def both(value: Fraction | str) -> str:
    """Returns a number as text: ``600/7 = 85.71``, or the whole number."""
    exact = Fraction(value)
    return str(exact.numerator) if exact.denominator == 1 else f"{exact} = {float(exact):.4g}"


def size_name(count: int) -> str:
    """Returns a size in bytes as text: 512 B, 64 KiB, 16 MiB, 1 GiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} B"
