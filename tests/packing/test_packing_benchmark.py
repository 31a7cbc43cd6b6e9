"""The packing benchmark runs and prints what it promises (on its smallest graphs)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "packing.py"


@pytest.mark.skipif(not BENCHMARK.exists(), reason="benchmarks are in the source tree alone")
def test_the_benchmark_writes_its_table(tmp_path: Path) -> None:
    out, kept = tmp_path / "table.yaml", tmp_path / "rows.jsonl"
    env = {k: v for k, v in os.environ.items() if k != "FORESTCOLL"}
    command: list[str | Path] = [sys.executable, BENCHMARK, "--only", "DGX-2", "--write", out, "--results", kept]

    def cells(*options: str) -> list[list[str]]:
        subprocess.run([*command, *options], check=True, capture_output=True, env=env)
        plans, beside = (
            section
            for section in yaml.safe_load(out.read_text())["sections"]
            if section.get("columns", [""])[0] == "graph"
        )
        assert [row[:4] for row in beside["rows"]] == [["DGX-2, 16 GPUs", "160.00", "16", "1"]]
        return [row[1:7] for row in plans["rows"] if row[0] == "DGX-2, 16 GPUs"]

    expected = [
        ["all_gather", "160.00", "160.00", "", "16", "1"],
        ["all_reduce", "80.00", "80.00", "", "16", "1"],
        ["broadcast", "150.00", "150.00", "", "15", "2"],
    ]
    assert cells() == expected
    # A row that an earlier run kept is not measured again.
    kept.write_text(kept.read_text().replace('"16", "150.00", "150.00"', '"16", "151.00", "150.00"'))
    assert cells() == [*expected[:2], ["broadcast", "151.00", *expected[2][2:]]]
    # `--kept` names the cases that are not kept.
    rows = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(row for row in rows if "all_reduce" not in row))
    assert [row[0] for row in cells("--kept")] == ["all_gather", "broadcast"]
    assert "Not measured: DGX-2, 16 GPUs: all_reduce." in out.read_text()
