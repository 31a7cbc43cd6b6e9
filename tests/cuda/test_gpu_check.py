"""gpu_check/check.py, which normally needs a GPU, on the mock driver."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_cuda_runtime import library, mock_driver

from collc.build.runtime import include_dirs
from collc.build.toolchain import find_cxx

FOLDER = Path(__file__).parent.parent.parent / "gpu_check"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="gpu_check is in the checkout, not in the wheel")


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "check.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **settings}, check=False, timeout=200
    )


def test_it_checks_every_type_and_operation():
    done = run("--library", str(library()), "--tiny", "--seconds", "150", LD_LIBRARY_PATH=str(mock_driver()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "340 of 340 right" in done.stdout
    assert done.stdout.splitlines()[-1].strip().startswith("all checks passed in")


def test_without_a_driver_it_fails_with_one_line():
    done = run("--library", str(library()), "--tiny", LD_LIBRARY_PATH="")
    assert done.returncode == 1
    assert "no NVIDIA driver here" in done.stdout
    assert "Traceback" not in done.stderr


def test_it_imports_nothing_but_the_standard_library_and_numpy():
    tree = ast.parse((FOLDER / "check.py").read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} - {"numpy"} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", ["hgx-h100", "dgx1v"])
def test_its_generated_sources_fit_the_headers(name):
    include = [f"-I{folder}" for folder in include_dirs()]
    command = [find_cxx().path, "-std=c++17", "-fsyntax-only", *include, str(FOLDER / f"{name}.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    again = f"collc compile {name} --target cuda --root 0 --keep-source gpu_check/{name}.cpp"
    assert done.returncode == 0, f"write it again ({again}): {done.stderr[:500]}"
