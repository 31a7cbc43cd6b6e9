"""docs/reproduced against the lists of what the sources claim: no row is absent, the summary counts what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reproduced"
SOURCES = ROOT.parent / "shared" / "sources"
VERDICTS = ("reproduced", "simulated within 15%", "off by more", "impossible here")
NAMES = ("blink", "nccl-protocols", "baidu-ring", "ring-by-hand", "flexlink")

pytestmark = pytest.mark.skipif(
    not PAGES.is_dir() or not (ROOT / "benchmarks").is_dir(), reason="the pages are not beside these tests"
)


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import reproduction.claims

    return reproduction.claims


def heading(item: Any) -> str:
    return f"## {item.at}" if item.at == item.title else f"## {item.at}: {item.title}"


def rows(text: str) -> list[list[str]]:
    """The rows of the claims' tables."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("| claim | source |"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_item_and_claim_has_its_row_in_order(name: str, claims: ModuleType) -> None:
    source = claims.load(name)
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert re.findall(r"^## .*$", page, re.M) == [heading(item) for item in source.items]
    sections = re.split(r"^## .*$", page, flags=re.M)[1:]
    for item, section in zip(source.items, sections, strict=True):
        assert [row[0] for row in rows(section)] == [claim.says for claim in item.claims], item.at
        for row in rows(section):
            verdict, _, reason = row[5].partition(": ")
            assert verdict in VERDICTS
            assert bool(reason) == (verdict in VERDICTS[2:]), row
            assert "NO REASON" not in reason
        if item.plot:
            assert f"(figures/{item.plot}.svg)" in section
            assert (PAGES / "figures" / f"{item.plot}.svg").stat().st_size > 1000


def test_the_summary_counts_the_rows() -> None:
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    whole: Counter[str] = Counter()
    for name in NAMES:
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        found = Counter(row[5].partition(":")[0] for row in rows(page))
        whole += found
        shown = " | ".join(str(found[v]) for v in VERDICTS)
        assert f"({name}.md) | {found.total()} | {shown} |" in index
    assert f"| all | {whole.total()} | " + " | ".join(str(whole[v]) for v in VERDICTS) + " |" in index
    assert index.count("\n- ") - 4 == whole[VERDICTS[2]] + whole[VERDICTS[3]], "the lists of what is off and impossible"


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
def test_an_item_is_generated_as_the_page_has_it(name: str, item: str) -> None:
    made = generated("--source", name, "--item", item)
    assert made.split("\n## ", 1)[1].strip() in (PAGES / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_pages_are_what_the_code_says(tmp_path: Path) -> None:
    """Everything but what was measured: plans and the model are the same everywhere."""
    generated("--write", str(tmp_path))
    assert {path.name for path in tmp_path.glob("*.md")} == {path.name for path in PAGES.glob("*.md")}
    for path in sorted(tmp_path.glob("*.md")):
        made, kept = (
            [line for line in p.read_text(encoding="utf-8").splitlines() if "measured:" not in line]
            for p in (path, PAGES / path.name)
        )
        assert made == kept, f"{path.name}: run `make reproduce`"
