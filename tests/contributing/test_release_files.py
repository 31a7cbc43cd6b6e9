"""The files around a release: workflows, container, recipe, hooks and the check of commit subjects."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from contributing.commit_subject import find_fault

import collc

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
pytestmark = pytest.mark.skipif(not WORKFLOWS.is_dir(), reason="the release files are not beside these tests")


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _workflow(name: str) -> Any:
    return yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["test", "nightly", "docs"])
def test_workflows_follow_githubs_schema(name: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    path = str(WORKFLOWS / f"{name}.yml")
    done = subprocess.run([*command, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_run_what_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path in WORKFLOWS.glob("*.yml"):
        for command in re.findall(r"- run: (.*)", path.read_text(encoding="utf-8")):
            words = command.split()
            assert words[0] == ".ci/run" or (words[0] == "make" and words[1] in targets), f"{path.name}: {command}"


def test_each_supported_python_is_in_the_workflow() -> None:
    matrix = _workflow("test")["jobs"]["test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: "
    named = [text.removeprefix(prefix) for text in _project()["classifiers"] if text.startswith(prefix + "3.")]
    assert matrix == named
    assert _project()["requires-python"] == f">={matrix[0]}"


def test_the_nightly_run_covers_each_folder_of_tests() -> None:
    jobs = _workflow("nightly")["jobs"]["slow"]["strategy"]["matrix"]["parts"]
    words = [word for job in jobs for word in job.split()]
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    missing = [folder for folder in folders if not any(word in f"{folder}/test_x" for word in words)]
    assert not missing, "add these folders to the parts of .github/workflows/nightly.yml"


def test_the_recipe_needs_what_the_package_needs() -> None:
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == collc.__version__
    run = {need.replace(" ", "").replace("python-igraph", "igraph") for need in recipe["requirements"]["run"]}
    assert {need.split("#")[0].strip() for need in _project()["dependencies"]} <= run


def test_the_container_copies_what_a_build_needs() -> None:
    text = (ROOT / "packaging" / "Containerfile").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (.*)", text, re.MULTILINE) for word in line.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    extras = re.findall(r"collc\[(.*?)\]", text)
    assert extras
    assert all(extra in _project()["optional-dependencies"] for names in extras for extra in names.split(","))


@pytest.mark.parametrize(
    ("message", "is_good"),
    [
        ("packing: bound the ring search\n\nThe reason.", True),
        ("runtime/wire: answer a challenge", True),
        ("Merge branch 'x'", True),
        ("Bound the ring search", False),
        ("packing: Bound the ring search", False),
        ("packing: bound the ring search.", False),
        ("packing: bound", False),
        ("packing: bound the ring search\nThe reason.", False),
        ("packing: " + "bound the search " * 5, False),
    ],
)
def test_commit_subjects_name_area_verb_and_object(message: str, is_good: bool) -> None:
    assert (find_fault(message) is None) == is_good


def test_the_hook_refuses_a_bad_subject(tmp_path: Path) -> None:
    path = tmp_path / "message"
    script = str(ROOT / "tests" / "contributing" / "commit_subject.py")
    for subject, status in (("docs: say why", 0), ("say why", 1)):
        path.write_text(f"{subject}\n# a comment of git\n")
        done = subprocess.run([sys.executable, script, str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
