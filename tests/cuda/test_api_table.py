"""The table of functions in docs/cuda.md against the header, the symbols of a library, and what calls come to."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from mock_jobs import job
from support import elf
from support.ranks import INVALID_USAGE
from test_cuda_runtime import library

from collc.resources import resource_dir

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs" / "cuda.md"

pytestmark = pytest.mark.skipif(not DOCS.is_file(), reason="the docs are in the checkout, not in the wheel")


class Row(NamedTuple):
    name: str
    what: str
    shown_by: list[str]


@cache
def rows() -> tuple[Row, ...]:
    section = DOCS.read_text(encoding="utf-8").split("\n## Functions\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if "| `nccl" in line]
    return tuple(
        Row(name, what, re.findall(r"tests/[\w/.]+", shown_by))
        for names, what, shown_by in cells
        for name in re.findall(r"`(nccl\w+)`", names)
    )


def named(what: str) -> list[str]:
    found = [row.name for row in rows() if row.what.startswith(what)]
    assert found, what
    return found


def test_sums_with_a_factor_and_of_8_bit_floats() -> None:
    for answer in job("factors"):
        shown = ("by value", "in memory", "e4m3", "e5m2", "alone by value", "alone in memory")
        assert answer == dict.fromkeys(shown, True)


def test_every_function_has_one_row_and_one_of_four_answers() -> None:
    names = [row.name for row in rows()]
    assert len(names) == len(set(names))
    for row in rows():
        assert re.match("served|accepted|refused|not defined", row.what), row


def test_the_table_has_what_the_header_and_the_library_have() -> None:
    names = {row.name for row in rows()}
    exported = {s.name for s in elf.symbols(library()) if s["st_shndx"] != "SHN_UNDEF" and s.name.startswith("nccl")}
    assert names - set(named("not defined")) == exported
    header = (resource_dir("templates") / "include" / "nccl.h").read_text(encoding="utf-8")
    # Not the macro itself.
    declared = {f"nccl{name}" for name in re.findall(r"COLLC_DECLARE\(\s*[^,]+,\s*(\w+)", header)} - {"ncclname"}
    assert len(declared) > 30
    assert declared <= names


def test_the_file_that_shows_a_function_names_it() -> None:
    for row in rows():
        assert row.shown_by, row
        texts = [(ROOT / file).read_text(encoding="utf-8") for file in row.shown_by]
        # This file takes their names from the table.
        assert row.shown_by == ["tests/cuda/test_api_table.py"] or any(
            re.search(rf"\b{row.name}\b", text) for text in texts
        ), row


def test_what_is_refused_says_so_and_the_communicator_goes_on() -> None:
    for answer in job("refused_functions", given={"names": named("refused")}, seconds=240):
        assert answer == {name: [INVALID_USAGE, True, True] for name in named("refused")}


def test_functions_with_a_configuration_do_what_those_without_do() -> None:
    assert job("collectives_with_config") == [[], [], []]


def test_what_a_communicator_says_of_itself() -> None:
    for rank, answer in enumerate(job("queries")):
        assert answer == {
            "ncclCommCount": 3,
            "ncclCommUserRank": rank,
            "ncclCommCuDevice": rank,
            "ncclGetVersion": 22809,
            "ncclGetErrorString": "invalid usage (run with COLLC_DEBUG=WARN for details)",
            "ncclTeamWorld": [3, rank],
            "ncclTeamLsa": [1, 0],
            "ncclTeamRail": [3, rank],
            "ncclTeamRankToWorld": 2,
            "ncclTeamRankToLsa": [0 if peer == rank else -1 for peer in range(3)],
        }


def test_less_usual_ways_to_make_communicators() -> None:
    for answer in job("created"):
        assert answer == {"ncclCommInitRankScalable": True, "ncclCommSplit": True}
