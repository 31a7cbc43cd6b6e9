"""`collc compile --in-switch`: the programs inside a switch that a library gets, and the refused machines."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from collc.build.compile import Contents
from collc.build.memory import fifo_bytes_by_rank
from collc.choose.in_switch import MOST_BYTES
from collc.choose.library import library_contents
from collc.choose.request import LibraryRequest
from collc.collectives.model import Collective
from collc.errors import UsageError
from collc.options import CUDA

GPUS, CALLS = "0-7", (Collective.ALL_REDUCE,)


@cache
def contents(machine: str = "hgx-h100", gpus: str = GPUS, in_switch: bool = True) -> Contents:
    return library_contents(LibraryRequest(machine, gpus=gpus, collectives=CALLS, in_switch=in_switch), CUDA)


@pytest.mark.slow
def test_large_sums_of_eight_gpus_are_inside_the_switch() -> None:
    (entries,) = contents().entries
    inside = [entry for entry in entries if entry.program.in_switch]
    assert len(inside) == 1
    least = inside[0].when.min_bytes
    assert least is not None
    assert 64 << 10 <= least <= 64 << 20
    assert inside[0].why.startswith("inside the switch from ")
    assert max(fifo_bytes_by_rank(inside, 8)) <= MOST_BYTES


@pytest.mark.slow
def test_all_other_programs_stay_as_they_are() -> None:
    (with_them,), (without,) = contents().entries, contents(in_switch=False).entries
    trees = [entry for entry in with_them if not entry.program.in_switch]
    assert trees == list(without)


@pytest.mark.slow
def test_where_it_is_not_faster_there_is_none() -> None:
    """Three GPUs: trees do as well, and have their own order of summation."""
    (entries,) = contents(gpus="0-2").entries
    assert not any(entry.program.in_switch for entry in entries)


@pytest.mark.parametrize(
    ("machine", "more", "says"),
    [
        ("dgx1v", {"gpus": "0-3"}, "no switch joins all of these GPUs and copies or adds"),
        ("hgx-h100", {"gpus": "0-2", "model": "a100"}, "do not say what sums inside switches take"),
        ("hgx-h100", {"allocations": "0-1/0-2"}, "one set of GPUs"),
        ("hgx-h100", {"gpus": "0-2", "tune_candidates": True}, "one set of GPUs"),
    ],
)
def test_who_is_told_why_not(machine: str, more: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        library_contents(LibraryRequest(machine, collectives=CALLS, in_switch=True, **more), CUDA)
