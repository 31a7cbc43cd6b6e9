"""A build cache keyed by content: what went in names what came out, so an entry never goes stale."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from collc.errors import BuildError


def cache_dir() -> Path:
    """COLLC_CACHE, else collc below XDG_CACHE_HOME, else ~/.cache/collc."""
    chosen = os.environ.get("COLLC_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "collc"


def content_key(parts: Iterable[str | bytes]) -> str:
    """A key for a sequence of texts; the boundaries between them count."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def cached(key: str, name: str, make: Callable[[Path], None], beside: Sequence[str] = ()) -> Path:
    """The file `name` of entry `key`; `make(path)` writes it if the cache lacks it. Built aside, renamed whole.

    Args:
        beside: files that `make` leaves in the same folder and that belong to the entry.
    """
    entry = cache_dir() / key[:2] / key / name
    if entry.is_file():
        return entry
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=entry.parent) as scratch:
            made = Path(scratch) / name
            make(made)
            if not made.is_file():
                raise BuildError(
                    f"its tool made no {name}",
                    where=str(entry.parent),
                    hint="COLLC_CXX and COLLC_NVCC must be compilers",
                )
            # The file that says that the entry is there comes last.
            for other in (*beside, name):
                made.with_name(other).replace(entry.with_name(other))
    except OSError as error:
        raise BuildError(
            f"cannot write the build cache: {error.strerror}",
            where=str(entry.parent),
            hint="set COLLC_CACHE to a folder",
        ) from error
    return entry
