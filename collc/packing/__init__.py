"""Packs spanning trees and flows for every collective on every graph, optimal or with a proven gap.

The solvers are imported on the first access to `plan`, because reading and checking plans does not need them.
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
