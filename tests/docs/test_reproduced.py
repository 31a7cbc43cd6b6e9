"""`make reproduce` answers every claim of the sources, and docs/data/reproduced.csv has its answers."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "docs" / "data" / "reproduced.csv"
SOURCES = ROOT.parent / "shared" / "sources"
VERDICTS = ("reproduced", "simulated within 15%", "off by more", "impossible here")
NAMES = ("blink", "nccl-protocols", "baidu-ring", "ring-by-hand", "flexlink")

pytestmark = pytest.mark.skipif(
    not ANSWERS.is_file() or not (ROOT / "benchmarks").is_dir(), reason="the pages are not beside these tests"
)


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import reproduction.claims

    return reproduction.claims


def kept() -> dict[tuple[str, str], dict[str, str]]:
    """Returns the rows of docs/data/reproduced.csv by source and claim."""
    with ANSWERS.open(encoding="utf-8", newline="") as file:
        return {(row["source"], row["claim"]): row for row in csv.DictReader(file)}


def test_every_claim_has_its_answer_in_order(claims: ModuleType) -> None:
    listed = [(name, c.id, item.at) for name in NAMES for item in claims.load(name).items for c in item.claims]
    assert [(*key, row["item"]) for key, row in kept().items()] == listed
    assert {row["verdict"] for row in kept().values()} == set(VERDICTS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.skipif(not SOURCES.is_dir(), reason="the sources' texts are not beside this checkout")
def test_the_lists_have_all_that_the_sources_number(name: str, claims: ModuleType) -> None:
    source = claims.load(name)
    text = (SOURCES / source.file).read_text(encoding="utf-8")
    listed = [item.at for item in source.items]
    if name in ("blink", "flexlink"):
        numbered = {f"{kind} {n}" for kind, n in re.findall(r"(?:^|>)(Figure|Table) (\d+):", text, re.M)}
        assert numbered <= set(listed)
        # Some captions are lost with their pictures: numbers run on, and the prose names what they stand for.
        for kind in {at.split()[0] for at in numbered}:
            found = [int(at.split()[1]) for at in listed if at.startswith(f"{kind} ")]
            assert sorted(found) == list(range(1, max(found) + 1))
            assert all(re.search(rf"{kind}\s+{n}\b|{kind[:3]}-\s*ure {n}\b", text) for n in found)
    elif name != "nccl-protocols":
        lines = text.splitlines()
        places = [lines.index(at) for at in listed]
        assert places == sorted(places)
    else:
        # Its tables are numbered by us: as many as there are.
        tables = [i for i, line in enumerate(text.splitlines()) if re.fullmatch(r"(\|-+)+\|", line.replace(" ", ""))]
        assert sum(at.startswith("Table") for at in listed) == len(tables)


def test_verdicts(claims: ModuleType) -> None:
    def verdict(value: float | bool | None, way: str = "counted", **given: Any) -> tuple[str, float | None]:
        claim = claims.Claim("id", "says", impossible="" if value is not None else "why", **given)
        row = claims.Row(claim, None if value is None else claims.Answer(value, way, "how"))
        return row.verdict, row.difference

    assert verdict(None) == ("impossible here", None)
    assert verdict(True) == ("reproduced", None)
    assert verdict(False)[0] == "off by more"
    assert verdict(True, "simulated")[0] == "simulated within 15%"
    assert verdict(10.1, theirs=10.0)[0] == "reproduced"
    assert verdict(10.3, theirs=10.0)[0] == "off by more"
    assert verdict(11.4, "simulated", theirs=10.0)[0] == "simulated within 15%"
    assert verdict(11.6, "simulated", theirs=10.0)[0] == "off by more"
    assert verdict(15.0, theirs=(10.0, 20.0)) == ("reproduced", 0.0)
    assert verdict(25.0, theirs=(10.0, 20.0)) == ("off by more", 0.25)
    assert verdict(5.0, theirs=(10.0, 20.0)) == ("off by more", -0.5)
    assert verdict(7.0, theirs=6.0, bound="at least") == ("reproduced", 0.0)
    assert verdict(5.0, theirs=6.0, bound="at least")[0] == "off by more"


def generated(*arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / "reproduce.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "item"), [("blink", "Figure 1"), ("baidu-ring", "The Scatter-Reduce")])
def test_an_item_is_generated_as_the_data_has_it(name: str, item: str, claims: ModuleType, tmp_path: Path) -> None:
    import reproduce
    from reproduction import pages

    source = claims.load(name)
    rows = reproduce.reproduce(name, tmp_path, item)
    found = list(csv.DictReader(pages.answers([(source, rows)]).splitlines()))
    assert found == [row for row in kept().values() if (row["source"], row["item"]) == (name, item)]
    assert len(found) > 2
    assert f"## {item}" in pages.page(source, rows)


@pytest.mark.slow
def test_the_data_has_the_answers_of_the_code(tmp_path: Path) -> None:
    """Plans and the model give the same answers on every machine; measured answers may differ."""
    generated("--write", str(tmp_path), "--answers", str(tmp_path / "answers.csv"))
    with (tmp_path / "answers.csv").open(encoding="utf-8", newline="") as file:
        found = {(row["source"], row["claim"]): row for row in csv.DictReader(file)}
    assert list(found) == list(kept())
    for key, row in found.items():
        assert row == kept()[key] or row["way"] == "measured", f"{key}: run `make reproduce`"
    for name in NAMES:
        for figure in re.findall(r"\]\((figures/[^)]+)\)", (tmp_path / f"{name}.md").read_text(encoding="utf-8")):
            assert (tmp_path / figure).stat().st_size > 1000
