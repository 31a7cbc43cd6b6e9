"""`python -m collc` is the command line."""

from __future__ import annotations

from collc.cli import main

main()
