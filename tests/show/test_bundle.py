"""The script of the page is what its sources and npm's packages give."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from collc.resources import resource_dir

SOURCES = resource_dir("templates") / "show"


def test_the_script_is_built_from_its_sources(tmp_path: Path) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("no npm here to build the page's script again")
    copy = tmp_path / "show"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("node_modules"))
    (copy / "page.js").unlink()
    steps = (
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=20000"],
        ["node", "node_modules/esbuild/install.js"],
        ["npm", "run", "build"],
    )
    for step in steps:
        done = subprocess.run(step, cwd=copy, capture_output=True, text=True, timeout=300)
        if done.returncode and step is steps[0]:
            pytest.skip(f"npm cannot install the packages here: {done.stderr.strip().splitlines()[-1:]}")
        assert done.returncode == 0, done.stderr
    assert (copy / "page.js").read_bytes() == (SOURCES / "page.js").read_bytes(), "run `make show-page`"


def test_the_script_holds_the_licenses_of_what_is_in_it() -> None:
    text = (SOURCES / "page.js").read_text(encoding="utf-8")
    notices = text.partition("*/")[0]
    assert "Copyright" in notices
    assert "Permission to use, copy, modify" in notices
    for name in ("d3-selection", "d3-zoom"):
        assert name in notices


def test_the_sources_make_no_markup_of_text() -> None:
    for path in sorted((SOURCES / "src").glob("*.js")):
        text = path.read_text(encoding="utf-8")
        for word in (
            "eval(",
            "new Function",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            ".html(",
            "document.write",
        ):
            assert word not in text, f"{path.name}: {word}"
