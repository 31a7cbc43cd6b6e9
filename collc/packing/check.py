"""The proof of packings, which is the checker's: no plan leaves `collc.packing.plan` without passing there."""

from collc.checker.packing import check_packing

__all__ = ["check_packing"]
