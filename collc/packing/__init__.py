"""Packing: certified optimal spanning trees and flows for every collective on every graph.

The solvers are imported when `plan` is asked for: who only reads and checks plans does without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collc.collectives.model import Collective
from collc.packing.model import Plan

if TYPE_CHECKING:
    from collc.packing.solve import plan

__all__ = ["Collective", "Plan", "plan"]


def __getattr__(name: str) -> Any:
    if name != "plan":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from collc.packing.solve import plan

    return plan
