"""Checks the links of a job for `collc doctor --job`, by its library while a communicator is created."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collc.bench.launchers import Place
from collc.bench.pairs import Pair, pair_of
from collc.bench.runner import library_ranks
from collc.bench.team import gpu_team_of, team_of
from collc.checker.library import read_manifest
from collc.errors import RunError
from collc.process import environment

VARIABLE = "COLLC_CHECK"


def check_job(library: Path, ranks: int | None, place: Place | None) -> list[Pair]:
    """Creates a communicator of a job's ranks with checks of all links, ends it, and returns the results.

    Args:
        ranks: the number of ranks; None for the largest that the library serves.
        place: the place of this process, rank 0, if a launcher started the ranks.

    Raises:
        RunError: wrong data arrived between a pair, which the error names, or the communicator could not be created.
    """
    manifest = read_manifest(library)
    nranks = library_ranks(manifest, ranks if place is None else place.size)
    with checking():
        if manifest["target"] == "cuda":
            with gpu_team_of(library, nranks) as gpus:
                rows = gpus.all({"do": "checked"})[0]["pairs"]
        else:
            with team_of(library, nranks, place) as team:
                rows = team.one(0, {"do": "checked"})["pairs"]
    if nranks > 1 and not rows:
        raise RunError("this library checks no links", where=str(library), hint="compile it again with this version")
    return [pair_of(row) for row in rows]


@contextmanager
def checking() -> Iterator[None]:
    """Makes communicators that are created in this context check their links."""
    with environment(VARIABLE, "1"):
        yield
