"""Solutions of the packing in the build cache: a graph is packed once for all commands of this user."""

from __future__ import annotations

from dataclasses import dataclass

from collc.build.cache import keep, kept

_NAME = "solution.json"


@dataclass(frozen=True)
class SolutionCache:
    """The solutions that `collc.packing.plan` finds, in the build cache; a `collc.packing.keep.SolutionStore`."""

    def get(self, key: str) -> str | None:
        """The text under `key`, or None."""
        data = kept(key, _NAME)
        return None if data is None else data.decode(errors="replace")

    def put(self, key: str, text: str) -> None:
        """Stores `text` if the cache can be written."""
        keep(key, _NAME, text.encode())
