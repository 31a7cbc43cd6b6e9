"""`collc bench` says which plan and protocol ran, as the library itself tells: the embedded table's, or the file's."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest
from support.cli import collc
from support.tunable import tunable

from collc.checker.library import read_manifest
from collc.tune.candidates import read_offers
from collc.tune.files import FileTable, tuning_text
from collc.tune.search import Row


def rows(*more: str) -> list[dict[str, Any]]:
    arguments = ["bench", tunable(), "--collective", "all_reduce", "-b", "4K", "-e", "64K", "-f", "16", "-n", "1"]
    done = collc(*arguments, "-w", "0", "--json", *more)
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = json.loads(done.out)["rows"]
    return found


def test_the_embedded_table() -> None:
    assert {(row["plan"], row["proto"], row["wrong"]) for row in rows()} == {("trees", "Simple", 0)}


def test_a_tuning_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = read_offers(read_manifest(tunable()))[0]
    candidates = [c for c in offer.candidates if c.collective.value == "all_reduce"]
    ring = next(c for c in candidates if c.plan == "rings")
    table = FileTable(0, candidates, [Row(0, candidates[0].number), Row(8192, ring.number)])
    library = ctypes.CDLL(str(tunable()))
    library.collc_machine.restype = ctypes.c_char_p
    file = tmp_path / "x.tuning"
    build = read_manifest(tunable())["build_id"]
    file.write_text(tuning_text(build, library.collc_machine().decode(), [table], "by hand"))
    monkeypatch.setenv("COLLC_TUNING", str(file))
    found = {(row["bytes"], row["plan"]) for row in rows()}
    assert found == {(4096, "trees"), (65536, "rings")}
