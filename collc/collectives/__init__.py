"""The definition of each collective, in one table that all other packages read."""

from collc.collectives.model import Collective

__all__ = ["Collective"]
