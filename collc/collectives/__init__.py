"""What each collective is: the table that everything else reads."""

from collc.collectives.model import Collective

__all__ = ["Collective"]
