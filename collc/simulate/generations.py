"""Parameters by GPU generation. docs/validation.md says which published tables each was fitted to."""

from __future__ import annotations

from collc.simulate.params import GENERIC, Machine

MACHINES: dict[str, Machine] = {machine.name: machine for machine in (GENERIC,)}
