"""Packing: certified optimal spanning trees and flows for every collective on every graph."""

from collc.collectives.model import Collective
from collc.packing.model import Plan
from collc.packing.solve import plan

__all__ = ["Collective", "Plan", "plan"]
