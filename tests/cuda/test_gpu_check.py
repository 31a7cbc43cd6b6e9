"""gpu_check/check.py, which normally needs a GPU, on the mock driver."""

from __future__ import annotations

import ast
import os
import re
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
        command, capture_output=True, text=True, env={**os.environ, **settings}, check=False, timeout=400
    )


def test_it_checks_every_type_and_operation():
    done = run("--library", str(library()), "--tiny", "--seconds", "300", LD_LIBRARY_PATH=str(mock_driver()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"results, protocols by the table +340 of 340 right", done.stdout)
    for protocol in ("Simple", "LL", "LL128"):
        assert re.search(rf"results, {protocol} +68 of 68 right", done.stdout)
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


def test_times_of_a_missing_size_are_left_out():
    """What is measured, on the mock, whose times mean nothing: three ranks alone are served."""
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import check; from pathlib import Path\n"
        "cuda, path = check.Cuda(), Path(sys.argv[2])\n"
        "rows = check.measure_sizes(path, cuda, 0.001, time.monotonic() + 100)\n"
        "rows += check.measure_throughput(path, cuda, 0.001)\n"
        "print('\\n'.join(f'{what}: {value}' for what, value in rows))\n"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(mock_driver()), "COLLC_SHARE_GPU": "1"}
    command = [sys.executable, "-c", program, str(FOLDER), str(library())]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "all_reduce, 2 ranks: LL: libcollc-odd-mock.so serves no 2 ranks" in done.stdout
    assert re.search(
        r"broadcast, 0\.001 MB, 3 ranks, LL128: \d+ GB/s copied into slots \(\d+% of a copy, \d+% of", done.stdout
    )


def nccl_rows(oldest: str, **settings: str) -> str:
    """The rows of NCCL, whose part a library for the mock plays, which takes three ranks alone."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import check\n"
        "sys.path[:] = sys.argv[1:]\n"  # no NCCL of a wheel
        f"rows = check.measure_nccl(0.001, 60, (3, 2), {oldest})\n"
        "print('\\n'.join(f'{what}: {value}' for what, value in rows))\n"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(mock_driver()), "COLLC_SHARE_GPU": "1", **settings}
    command = [sys.executable, "-c", program, str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nccl_has_the_same_table_where_it_runs():
    said = nccl_rows("0", NCCL_LIB=str(library()))
    assert re.search(
        r"^all_reduce, NCCL 2\.\d+\.\d+, us: ranks     bytes    Simple        LL     LL128    chosen$", said, re.M
    )
    assert re.search(r"^:     3         8( +\d+\.\d){4}$", said, re.M)
    for way in ("Simple", "LL", "LL128", "chosen"):
        assert re.search(rf"2 ranks: {way}: not run: ncclCommInitAll: ", said)


def test_an_nccl_that_allows_one_rank_per_gpu_is_not_run():
    said = nccl_rows("23003", NCCL_LIB=str(library()))
    assert re.fullmatch(r"all_reduce, NCCL 2\.\d+\.\d+: not run: before 2\.30\.3 it allows one rank per GPU\n", said)


def test_what_is_no_nccl_is_not_run(tmp_path):
    (tmp_path / "libnccl.so.2").write_text("nothing")
    assert "all_reduce, NCCL: not run: " in nccl_rows("0", NCCL_LIB=str(tmp_path / "libnccl.so.2"))
    assert "NCCL_LIB=FILE or NCCL_HOME=FOLDER names one" in nccl_rows("0", NCCL_HOME=str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["hgx-h100", "dgx1v", "chain"])
def test_its_generated_sources_fit_the_headers(name):
    include = [f"-I{folder}" for folder in include_dirs()]
    command = [find_cxx().path, "-std=c++17", "-fsyntax-only", *include, str(FOLDER / f"{name}.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, f"write it again (docs/cuda.md says how): {done.stderr[:500]}"
