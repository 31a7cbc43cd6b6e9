"""The table of docs/cuda-functions.md against the header, the symbols of a library, and the results of calls."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from mock_jobs import job
from support import elf
from support.nccl_names import OF_NCCL
from support.ranks import INVALID_USAGE
from test_cuda_runtime import library

from collc.build.toolchain import find_cxx, run_tool
from collc.resources import resource_dir

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs" / "cuda-functions.md"

pytestmark = pytest.mark.skipif(not DOCS.is_file(), reason="the docs are in the checkout, not in the wheel")

LEVEL = 23007  # of the API that collc has


class Row(NamedTuple):
    name: str
    what: str
    shown_by: list[str]


@cache
def rows() -> tuple[Row, ...]:
    section = DOCS.read_text(encoding="utf-8").split("\n## Functions\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if "| `nccl" in line]
    return tuple(
        Row(name, what, re.findall(r"tests/[\w/.]+::\w+", shown_by))
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
        assert re.match("served|accepted|refused|passed on", row.what), row


def test_the_table_has_what_the_header_and_the_library_have() -> None:
    exported = {s.name for s in elf.symbols(library()) if s["st_shndx"] != "SHN_UNDEF" and s.name.startswith("nccl")}
    names = {row.name for row in rows()}
    assert names == exported == {f"nccl{name}" for name in OF_NCCL}
    header = (resource_dir("templates") / "include" / "nccl.h").read_text(encoding="utf-8")
    assert f"#define NCCL_VERSION_CODE {LEVEL}\n" in header
    # Not the macro itself.
    declared = {f"nccl{name}" for name in re.findall(r"COLLC_DECLARE\(\s*[^,]+,\s*(\w+)", header)} - {"ncclname"}
    assert len(declared) > 30
    assert declared <= names


# Tests that take the functions from the table, by the status in the table.
FROM_THE_TABLE = {
    "test_what_is_refused_says_so_and_the_communicator_goes_on": "refused",
    "test_functions_without_a_communicator_are_passed_on": "passed on",
}


class Definition(NamedTuple):
    text: str
    node: ast.AST
    has_scenarios: bool  # whether its strings may name what a job does


@cache
def definitions(path: Path) -> dict[str, list[Definition]]:
    """Functions, methods and constants of a module by their names."""
    lines = path.read_text(encoding="utf-8").splitlines()
    tree, found = ast.parse("\n".join(lines)), dict[str, list[Definition]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            name, is_constant = node.name, False
        elif isinstance(node, ast.Assign) and node in tree.body and isinstance(node.targets[0], ast.Name):
            name, is_constant = node.targets[0].id, True
        elif isinstance(node, ast.AnnAssign) and node in tree.body and isinstance(node.target, ast.Name):
            name, is_constant = node.target.id, True
        else:
            continue
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        found.setdefault(name, []).append(Definition(text, node, is_constant or path.name.startswith("test_")))
    return found


def names_in(one: Definition) -> Iterator[str]:
    for part in ast.walk(one.node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            yield part.id
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in ("self", "nccl"):
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and one.has_scenarios:
            # mock_program.py is a separate program; jobs name a scenario of mock_scenarios.py.
            yield "init_with_config" if part.value == "mock_program.py" else part.value


@cache
def reached_from(test: str) -> str:
    """The sources of a test and of all that it runs here: functions, scenarios and constants that it names."""
    file, _, name = test.partition("::")
    assert name in definitions(ROOT / file), f"{test} does not exist"
    modules = [ROOT / file, *sorted((ROOT / "tests" / "cuda").glob("*.py")), ROOT / "collc" / "bench" / "nccl.py"]
    known: dict[str, list[Definition]] = {}
    for path in dict.fromkeys(modules):
        for defined, ones in definitions(path).items():
            # This file knows the helpers that it imports from another test file, but not its tests.
            if not defined.startswith("test_") or path == ROOT / file:
                known.setdefault(defined, []).extend(ones)
    todo, seen, texts = [name], {name}, []
    while todo:
        for one in known[todo.pop()]:
            texts.append(one.text)
            new = {found for found in names_in(one) if found in known} - seen
            todo += new
            seen |= new
    return "\n".join(texts)


def test_every_test_in_the_table_exists_and_runs_the_function() -> None:
    for row in rows():
        assert row.shown_by, row
        by_table = {test.partition("::")[2] for test in row.shown_by} & set(FROM_THE_TABLE)
        if by_table:
            assert all(row.what.startswith(FROM_THE_TABLE[test]) for test in by_table), row
        sources = [reached_from(test) for test in row.shown_by]  # fails for a test that does not exist
        assert by_table or any(re.search(rf"\b{row.name}\b", source) for source in sources), row


def test_a_test_that_does_not_run_a_function_does_not_show_it() -> None:
    assert "ncclCommGrow" in reached_from("tests/cuda/test_grow.py::test_a_communicator_grows_and_grows_again")
    assert "ncclCommRevoke" not in reached_from("tests/cuda/test_grow.py::test_a_communicator_grows_and_grows_again")
    with pytest.raises(AssertionError, match="does not exist"):
        reached_from("tests/cuda/test_grow.py::test_nothing")


def test_encryption_is_refused_and_left_to_nccl_where_nccl_serves(tmp_path: Path) -> None:
    """A program must not believe that it encrypts our connections between servers."""
    source = tmp_path / "nccl.c"
    source.write_text("int ncclSetEncryption(const void *config) { return config == 0 ? 3 : 0; }\n", encoding="utf-8")
    real = tmp_path / "libnccl.so"
    run_tool([find_cxx().path, "-xc", "-shared", "-fPIC", str(source), "-o", str(real)])
    program = (
        f"import ctypes\nlib = ctypes.CDLL({str(library())!r})\nlib.ncclGetLastError.restype = ctypes.c_char_p\n"
        "print(lib.ncclSetEncryption(None), lib.ncclSetEncryption(b'x' * 64), lib.ncclGetLastError(None).decode())"
    )

    def said(**settings: str) -> str:
        environment = {**os.environ, "COLLC_NCCL": str(real), **settings}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    assert said().startswith(f"{INVALID_USAGE} {INVALID_USAGE} ncclSetEncryption: not supported: COLLC_NET_TLS=1")
    assert said(COLLC_DISABLE="1").startswith("3 0 ")


def test_what_is_refused_says_so_and_the_communicator_goes_on() -> None:
    names = named("refused")
    for answer in job("refused_functions", given={"names": names}, seconds=240):
        assert answer == {name: [INVALID_USAGE, True, True] for name in names}


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
            "ncclTeamCft": [1, 0],
            "ncclTeamCftMultimem": [1, 0],
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
