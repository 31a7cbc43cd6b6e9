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

# Every function of the host that the headers of NCCL 2.30.7 declare: nccl.h, then nccl_device.
OF_NCCL = """
MemAlloc MemFree GetVersion GetUniqueId CommInitRankConfig CommInitRank CommInitAll CommFinalize CommDestroy CommAbort
CommRevoke CommSplit CommShrink CommGetUniqueId CommGrow CommInitRankScalable GetErrorString GetLastError ResetDebugInit
CommGetAsyncError CommCount CommCuDevice CommUserRank CommRegister CommDeregister CommSuspend CommResume CommMemStats
CommWindowRegister CommWindowDeregister WinGetUserPtr RedOpCreatePreMulSum RedOpDestroy Reduce Bcast Broadcast AllReduce
ReduceScatter AllGather AlltoAll Gather Scatter Send Recv PutSignal Signal WaitSignal GroupStart GroupEnd
GroupSimulateEnd ParamBind ParamGetI8 ParamGetI16 ParamGetI32 ParamGetI64 ParamGetU8 ParamGetU16 ParamGetU32 ParamGetU64
ParamGetStr ParamGet ParamGetParameter ParamGetAllParameterKeys ParamDumpAll
CommQueryProperties DevCommCreate DevCommDestroy GetLsaDevicePointer GetLsaMultimemDevicePointer
GetMultimemDevicePointer GetPeerDevicePointer GinBarrierCreateRequirement GinInboxA2ACreateRequirement
GinOutboxCreateRequirement LLA2ACalcSlots LLA2ACreateRequirement LsaBarrierCreateRequirement TeamLsa TeamRail
TeamRankToLsa TeamRankToWorld TeamWorld
"""
LEVEL = 23007


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


def test_the_table_has_every_function_of_nccls_headers_at_our_level() -> None:
    header = (resource_dir("templates") / "include" / "nccl.h").read_text(encoding="utf-8")
    assert f"#define NCCL_VERSION_CODE {LEVEL}\n" in header
    beyond = {row.name for row in rows()} - {f"nccl{name}" for name in OF_NCCL.split()}
    # Newer releases have these too, and hand them a communicator.
    assert all(name.endswith("Config") for name in beyond), beyond
    assert {f"nccl{name}" for name in OF_NCCL.split()} <= {row.name for row in rows()}


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
            "ncclGetVersion": LEVEL,
            "ncclGetErrorString": "invalid usage (run with COLLC_DEBUG=WARN for details)",
            "ncclTeamWorld": [3, rank],
            "ncclTeamLsa": [1, 0],
            "ncclTeamRail": [3, rank],
            "ncclTeamRankToWorld": 2,
            "ncclTeamRankToLsa": [0 if peer == rank else -1 for peer in range(3)],
        }


def test_less_usual_ways_to_make_communicators() -> None:
    for answer in job("created"):
        assert answer == {"ncclCommInitRankScalable": True, "ncclCommSplit": True, "ncclCommGrow": True}


def test_a_communicator_rests_and_goes_on() -> None:
    for answer in job("suspended"):
        assert answer.pop("gpu bytes") > 100_000
        assert answer == {
            "active": [0, True],
            "suspended": [1, INVALID_USAGE, "the communicator is suspended: ncclCommResume goes first"],
            "resumed": [0, True],
            "memory that can be suspended": 0,
        }


def test_windows_are_null_where_peers_do_not_read_them() -> None:
    for answer in job("windows"):
        assert answer == {"registered": [0, None], "pointer": [0, None], "deregistered": 0, "nothing": 4, "works": True}


def test_a_revoked_communicator_ends_its_calls_and_can_be_split() -> None:
    """Rank 0 revokes while its call waits for the others, who hear of it and then revoke too."""
    answers = job("revoked")
    for rank, answer in enumerate(answers):
        assert answer.pop("seconds") < 5
        assert rank == 0 or answer.pop("heard") == [6, True]
        assert answer == {
            "state": 0,
            "call": INVALID_USAGE,
            "finalize": INVALID_USAGE,
            "again": 4,
            "split works": True,
            "and split again": True,
        }
