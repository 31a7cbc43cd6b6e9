"""The definition of each collective: the table that everything else reads."""

from collc.collectives.model import Collective

__all__ = ["Collective"]
