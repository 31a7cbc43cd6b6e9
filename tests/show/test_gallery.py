"""The gallery of the documentation has every machine that comes with collc."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from collc.topology import zoo

ROOT = Path(__file__).parents[2]


def test_the_gallery_has_every_machine() -> None:
    page = ROOT / "docs" / "gallery.md"
    if not page.is_file():
        pytest.skip("the documentation is not beside these tests")
    written = page.read_text(encoding="utf-8")
    assert written == runpy.run_path(str(ROOT / "benchmarks" / "gallery.py"))["text"](), "run `make gallery`"
    figures = re.findall(r"\]\((figures/machines/[^)]+)\)", written)
    assert [Path(figure).stem for figure in figures] == list(zoo.names())
    for figure in figures:
        text = (ROOT / "docs" / figure).read_text(encoding="utf-8")
        assert text.startswith("<?xml")
        assert "http://www.w3.org/2000/svg" in text
    assert {p.name for p in (ROOT / "docs" / "figures" / "machines").iterdir()} == {Path(f).name for f in figures}
