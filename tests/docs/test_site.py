"""The site builds without a warning (links and anchors among them), and its generated parts are those of the code."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import collc
from collc import errors
from collc.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
VARIABLE = re.compile(r"COLLC_[A-Z0-9_]+")

pytestmark = pytest.mark.skipif(not (DOCS / "index.md").is_file(), reason="the documents are not beside these tests")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


class _Asked(HTMLParser):
    """What a page would load by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src") or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon", "preconnect"):
            self.found.append(given.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert {Path("tutorial.html"), Path("measurements/pacing.html")} <= pages
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    assert pages | {Path("contributing.html"), Path("changelog.html")} <= built
    assert (site / "files" / "examples" / "check_a_result.py").is_file()


def test_pages_ask_no_other_server(site: Path) -> None:
    for path in site.rglob("*.html"):
        parser = _Asked()
        parser.feed(path.read_text(encoding="utf-8"))
        assert parser.found
        assert not [link for link in parser.found if re.match(r"(https?:)?//", link)], path


def test_a_broken_link_fails_the_build(site: Path, tmp_path: Path) -> None:
    """Else the test above could not fail."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# a\n\n[x](missing.md) and [y](#nowhere)\n")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    kept = {key: settings[key] for key in ("site_name", "theme", "validation")}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(kept))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode
    assert "missing.md" in done.stderr
    assert "nowhere" in done.stderr


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_of_pages_at_the_top(name: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert re.match(r"https?:", link) or (ROOT / link).exists(), link


def test_the_readme_is_short_and_has_a_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 70
    assert "](docs/figures/four-gpus.svg)" in text
    for command in ("make demo", "make test"):
        assert command in text


def test_the_commands_are_the_programs() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "reference.py"))["text"]()
    assert page("commands.md") == made, "run `make reference` and read the difference"


def variables_of_the_code() -> set[str]:
    """Every COLLC_ variable that the runtime asks for, or that the package names in a text of its own."""
    found = set()
    for path in (ROOT / "templates" / "runtime").rglob("*.[ch]*"):
        found |= set(re.findall(r'\b(?:read_\w+|is_set)\("(COLLC_\w+)"', path.read_text(encoding="utf-8")))
    for path in Path(collc.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value):
                found.add(node.value)
    return found


def test_every_variable_is_in_the_table() -> None:
    rows = [line.split("|")[1] for line in page("environment.md").splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in VARIABLE.findall(row)]
    assert len(set(named)) == len(named)
    assert set(named) == variables_of_the_code()
    assert len(named) > 20


def test_pages_name_no_other_variable() -> None:
    """Other names of this kind are macros of the C++ sources, and variables that tests read."""
    files = [path for path in (ROOT / "templates").rglob("*") if path.suffix in (".h", ".cpp", ".cu")]
    files += (ROOT / "tests").rglob("*.py")
    others = {name for path in files for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    known = variables_of_the_code() | others
    for path in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for name in re.findall(r"`(COLLC_[A-Z0-9_]+)(?:=[^`]*)?`", path.read_text(encoding="utf-8")):
            assert name in known, f"{path.name} names {name}"


def test_every_error_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d) \|", page("errors.md"), re.MULTILINE)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.CollcError)]
    assert {name: int(code) for name, code in rows} == {kind.__name__: kind.exit_code for kind in kinds}


@pytest.mark.parametrize("name", ["four-gpus", "eight-gpus"])
def test_pictures_are_drawn_by_the_program(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = (DOCS / "figures" / f"{name}.svg").read_bytes()
    made = runpy.run_path(str(ROOT / "benchmarks" / "pictures.py"))["draw"](tmp_path, name).read_bytes()
    # Another matplotlib may write other bytes; what is drawn is then compared by the number of its paths.
    if made != kept:
        assert made.count(b"<path") == kept.count(b"<path"), "run `make pictures`"


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == collc.__version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name
)
def test_issue_templates_are_forms(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == "config.yml":
        assert set(form) == {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= set(form)
    ids = [item["id"] for item in form["body"]]
    assert len(set(ids)) == len(ids)
    for item in form["body"]:
        assert item["type"] in ("textarea", "input", "dropdown", "checkboxes", "markdown")
        assert item["attributes"]["label"]


def test_nothing_says_that_collc_can_be_had_from_pypi() -> None:
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        assert not re.search(r"pip install '?collc\b", path.read_text(encoding="utf-8")), path


def test_security_has_a_row_for_every_command() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page("security.md"), re.M)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(COMMANDS)


def test_security_names_every_variable_that_a_setuid_program_ignores() -> None:
    read = {
        name
        for source in (ROOT / "templates").rglob("*.cpp")
        for name in re.findall(r'\bread_path\("(\w+)"\)', source.read_text(encoding="utf-8"))
    }
    (said,) = re.findall(r"\*\*Callers of a setuid program\.\*\*(.*?)\n\n", page("security.md"), re.S)
    # The loader itself ignores LD_PRELOAD there.
    assert set(re.findall(r"`([A-Z0-9_]+)`", said)) == read - {"LD_PRELOAD"}
