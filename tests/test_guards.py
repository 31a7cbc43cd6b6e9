"""Guards of the project must be able to fail: one fault is planted for each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
ALL_SKIPPED = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_of_a_missing_tool(number):
    pytest.skip("the tool is not here")
"""


def run(*argv: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with arguments, without the settings of the pytest that runs this test."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=settings | environment)


def run_tests(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs a test file beside a copy of the project's conftest.py."""
    shutil.copyfile(TESTS / "conftest.py", folder / "conftest.py")
    (folder / "test_planted.py").write_text(text)
    return run("-m", "pytest", "-q", "-p", "no:cacheprovider", *options, folder)


def test_a_run_that_skips_everything_fails(tmp_path: Path) -> None:
    assert run_tests(tmp_path, ALL_SKIPPED).returncode == 5
    assert run_tests(tmp_path, ALL_SKIPPED, "-n", "2").returncode == 5
    assert run_tests(tmp_path, ALL_SKIPPED + "\ndef test_here():\n    assert True\n").returncode == 0


@pytest.mark.parametrize(("unsteady", "broken", "status"), [(1, 0, 0), (2, 0, 1), (0, 1, 1), (1, 1, 1)])
def test_one_unsteady_test_is_named_and_more_fail_the_run(
    unsteady: int, broken: int, status: int, tmp_path: Path
) -> None:
    text = "from pathlib import Path\n\ndef fails_once(name):\n    mark = Path(__file__).with_name(name)\n"
    text += "    failed_before, _ = mark.exists(), mark.touch()\n    assert failed_before\n"
    text += "".join(f"\ndef test_once_{i}():\n    fails_once('{i}')\n" for i in range(unsteady))
    text += "".join(f"\ndef test_never_{i}():\n    assert False\n" for i in range(broken))
    (tmp_path / "test_planted.py").write_text(text)
    assert run("-m", "pytest", "-q", tmp_path, "--rootdir", tmp_path, cwd=tmp_path).returncode == 1
    done = run(TESTS.parent / ".ci" / "again.py", cwd=tmp_path)
    assert done.returncode == status
    named = done.stdout.partition("unsteady, failed once and then passed 3 times alone:")[2].split()
    assert [name.partition("::")[2] for name in named] == [f"test_once_{i}" for i in range(unsteady)]


def test_slow_cases_are_left_to_the_slow_run_and_exist(tmp_path: Path) -> None:
    family = """
import pytest

@pytest.mark.parametrize("number", range(3))
@pytest.mark.slow_for("1")
def test_of_three(number):
    assert number != 1
"""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  slow_for\n")
    assert "2 passed, 1 deselected" in run_tests(tmp_path, family, "-m", "not slow").stdout
    done = run_tests(tmp_path, family.replace('"1"', '"4"'), "-m", "not slow")
    assert done.returncode == 4
    assert "slow_for names cases that do not exist" in done.stderr


def test_a_folder_without_nccl_tests_fails(tmp_path: Path) -> None:
    file = TESTS / "nccl_tests" / "test_nccl_tests.py"
    argv = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow", file)
    done = run(*argv, NCCL_TESTS=str(tmp_path))
    assert done.returncode == 1, done.stdout
    assert f"no nccl-tests program (*_perf) below NCCL_TESTS={tmp_path}" in done.stdout


def outcomes(folder: Path, backend: str, **tests: str) -> Path:
    """A file of results as tests/torch_backend/suite.py writes them, of a world of 2."""
    path = folder / f"{backend}-2.json"
    rows = {name: [outcome, ""] for name, outcome in tests.items()}
    path.write_text(json.dumps({"backend": backend, "world": 2, "tests": rows}))
    return path


def test_the_torch_suite_fails_without_results_and_for_tests_that_only_gloo_passes(tmp_path: Path) -> None:
    suite = TESTS / "torch_backend" / "suite.py"
    collc = outcomes(tmp_path, "collc", test_a="pass", test_b="fail")
    alone = run(suite, "table", collc)
    assert (alone.returncode, alone.stderr) == (1, "world 2: no results of gloo\n")
    both = run(suite, "table", collc, outcomes(tmp_path, "gloo", test_a="pass", test_b="pass"))
    assert (both.returncode, both.stderr) == (1, "test_b\n")
    assert run(suite, "table", collc, outcomes(tmp_path, "gloo", test_a="pass", test_b="fail")).returncode == 0
