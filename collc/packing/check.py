"""Gives the solvers `collc.checker.packing.check_packing`, which every plan of `collc.packing.plan` passes."""

from collc.checker.packing import check_packing

__all__ = ["check_packing"]
