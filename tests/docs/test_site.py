"""The site builds without a warning, links and anchors included, and its generated parts match the code."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
import yaml

import collc
from collc import errors
from collc.cli.app import COMMANDS, cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
VARIABLE = re.compile(r"COLLC_[A-Z0-9_]+")

pytestmark = pytest.mark.skipif(not (DOCS / "index.md").is_file(), reason="the documents are not beside these tests")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


class _Asked(HTMLParser):
    """Collects the addresses that a page loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src") or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon", "preconnect"):
            self.found.append(given.get("href") or "")


def checkout(folder: Path) -> Path:
    """Returns a checkout without build/: docs/ and mkdocs.yml are copies, all else are symbolic links."""
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name == "docs":
            shutil.copytree(path, folder / "docs")
        elif path.name == "mkdocs.yml":
            shutil.copy(path, folder)
        elif path.name != "build" and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    return folder


def build(root: Path, site: Path, *, pages: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the program of `make docs`, or only its last step with the generated pages of an earlier run."""
    command = [sys.executable, str(ROOT / "benchmarks" / "build_site.py"), "--root", str(root), "--site", str(site)]
    if pages is not None:
        (root / "build").mkdir()
        (root / "build" / "pages").symlink_to(pages)
        command.append("--keep-pages")
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a few stand-ins for the pages of `make reproduce`, which takes minutes."""
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    folder = checkout(tmp_path_factory.mktemp("checkout") / "collc")
    (folder / "build" / "reproduced").mkdir(parents=True)
    (folder / "build" / "reproduced" / "blink.md").write_text("# Blink, row by row\n")
    return folder


@pytest.fixture(scope="module")
def site(root: Path) -> Path:
    site = root / "build" / "site"
    done = build(root, site)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def test_every_page_is_in_the_site(root: Path, site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert Path("tutorial.html") in pages
    generated = {path.relative_to(root / "build/pages") for path in (root / "build/pages").rglob("*.*")}
    data = {Path("measurements") / f"{path.stem}-rows.md" for path in (DOCS / "data").glob("*.yaml")}
    assert {Path("commands.md"), Path("gallery.md"), Path("validation-tables.md"), *data} <= generated
    built = {path.relative_to(site) for path in site.rglob("*.*")}
    assert {path.with_suffix(".html") if path.suffix == ".md" else path for path in generated} <= built
    assert pages | {Path("contributing.html"), Path("changelog.html"), Path("rows/blink.html")} <= built
    assert (site / "files" / "examples" / "check_a_result.py").is_file()


def test_the_navigation_lists_the_generated_pages(site: Path) -> None:
    start = (site / "index.html").read_text(encoding="utf-8")
    for name in ("commands", "gallery", "validation-tables", "measurements/gpu-rows", "rows/blink"):
        assert f'href="{name}.html"' in start, name


def test_planted_faults_fail_the_build(root: Path, site: Path, tmp_path: Path) -> None:
    """The exit code tells, because strict mode counts warnings; with --quiet it would count none."""
    folder = checkout(tmp_path / "collc")
    links = ["missing.md", "#nowhere", "../missing.py", "../examples"]
    with (folder / "docs" / "faq.md").open("a", encoding="utf-8") as file:
        file.write("\n" + " ".join(f"[x]({link})" for link in links) + "\n")
    settings = (folder / "mkdocs.yml").read_text(encoding="utf-8")
    assert "      - tutorial.md\n" in settings
    (folder / "mkdocs.yml").write_text(settings.replace("      - tutorial.md\n", ""), encoding="utf-8")
    done = build(folder, tmp_path / "site", pages=root / "build" / "pages")
    assert done.returncode == 1
    warnings = [line for line in re.split(r"(?=^WARNING|^INFO)", done.stderr, flags=re.M) if line.startswith("WARNING")]
    for fault in ("tutorial.md", "missing.md", "nowhere", "missing.py", "examples"):
        assert [line for line in warnings if fault in line], fault


def test_make_docs_builds_the_site_by_that_program() -> None:
    done = subprocess.run(["make", "-n", "-B", "docs"], cwd=ROOT, capture_output=True, text=True, check=True)
    commands = re.findall(r"benchmarks/(.*)", done.stdout)
    assert commands == ["reproduce.py --write build/reproduced", "build_site.py"]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_git_tracks_no_generated_page_and_at_most_five_pictures() -> None:
    done = subprocess.run(
        ["git", "ls-files", "docs/figures", "docs/*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tracked = [Path(name) for name in done.stdout.split() if (ROOT / name).exists()]
    assert len([path for path in tracked if path.suffix == ".svg"]) <= 5
    assert not {"commands.md", "gallery.md", "validation-tables.md"} & {path.name for path in tracked}


def test_pages_ask_no_other_server(site: Path) -> None:
    for path in site.rglob("*.html"):
        parser = _Asked()
        parser.feed(path.read_text(encoding="utf-8"))
        assert parser.found
        assert not [link for link in parser.found if re.match(r"(https?:)?//", link)], path


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))], ids=str)
def test_links_lead_to_files_of_the_repository(path: Path) -> None:
    """People also read the pages in the repository, where generated pages do not exist. The site has no folders."""
    for link in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        assert re.match(r"https?:|mailto:", link) or (path.parent / link).is_file(), link


def test_the_readme_is_short_and_has_a_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert "](docs/figures/ring-or-trees.svg)" in text
    for command in ("make demo", "make test"):
        assert command in text


def test_the_reference_has_every_command_and_option() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        text: str = runpy.run_path(str(ROOT / "benchmarks" / "reference.py"))["text"]()
    finally:
        sys.path.pop(0)
    sections = re.split(r"^## collc ", text, flags=re.M)[1:]
    assert [section.split("\n")[0] for section in sections] == list(COMMANDS)
    context = click.Context(cli, info_name="collc")
    for name, section in zip(COMMANDS, sections, strict=True):
        command = cli.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                shown = {"--json", "--debug"} & set(parameter.opts) or [o for o in parameter.opts if o in section]
                assert shown, f"{name} {parameter.opts}"


def variables_of_the_code() -> set[str]:
    """Returns each COLLC_ variable that the runtime reads or that a string of the package names."""
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


@pytest.mark.parametrize("name", ["four-gpus", "eight-gpus", "ring-or-trees"])
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
