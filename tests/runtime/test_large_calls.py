"""Calls of more than 4 GiB on the host target, every byte looked at: `make large-calls`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.libraries import library

NEEDED_GB = 11  # two ranks with a buffer of 4.3 GB each, and the memory of the check


@pytest.mark.slow
@pytest.mark.parametrize("way", [{}, {"COLLC_DIRECT": "0"}], ids=["direct", "slots"])
def test_calls_of_more_than_4_gib(way: dict[str, str], tmp_path: Path) -> None:
    found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    if found is None or int(found[1]) < NEEDED_GB * 10**6:
        pytest.skip(f"needs {NEEDED_GB} GB of memory")
    program = [sys.executable, str(Path(__file__).parent / "large_calls.py"), str(library("pair"))]
    ranks = [
        subprocess.Popen(
            [*program, str(rank), str(tmp_path)], stdout=subprocess.PIPE, text=True, env={**os.environ, **way}
        )
        for rank in range(2)
    ]
    try:
        said = [json.loads(rank.communicate(timeout=500)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert said == [{"transfer": 0, "all_reduce": 0, "broadcast": 0}] * 2
