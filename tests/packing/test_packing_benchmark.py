"""The packing benchmark runs and prints what it promises (on its smallest graphs)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "packing.py"


@pytest.mark.skipif(not BENCHMARK.exists(), reason="benchmarks are in the source tree alone")
def test_the_benchmark_writes_its_table(tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    env = {k: v for k, v in os.environ.items() if k != "FORESTCOLL"}
    subprocess.run(
        [sys.executable, BENCHMARK, "--only", "DGX-2", "--write", out], check=True, capture_output=True, env=env
    )
    lines = out.read_text().splitlines()
    cells = [line.split(" | ") for line in lines if line.startswith("| DGX-2, 16 GPUs")]
    assert [c[1:5] for c in cells] == [
        ["all_gather", "160.00", "16", "1"],
        ["all_reduce", "80.00", "16", "1"],
        ["broadcast", "150.00", "15", "2"],
    ]
