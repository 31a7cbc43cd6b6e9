"""Stores the solutions of packing in the build cache, so that all commands of a user pack a graph only once."""

from __future__ import annotations

from dataclasses import dataclass

from collc.build.cache import keep, kept

_NAME = "solution.json"


@dataclass(frozen=True)
class SolutionCache:
    """A `collc.packing.solvers.store.SolutionStore` in the build cache."""

    def get(self, key: str) -> str | None:
        """Returns the text under `key`; None if there is none."""
        data = kept(key, _NAME)
        return None if data is None else data.decode(errors="replace")

    def put(self, key: str, text: str) -> None:
        """Stores `text` under `key` if the cache can be written."""
        keep(key, _NAME, text.encode())
