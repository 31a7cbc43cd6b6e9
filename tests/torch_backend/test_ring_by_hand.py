"""The ring by hand of the examples beside the library's all_reduce: equal bits on every rank."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ring_by_hand.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not EXAMPLE.is_file(), reason="the examples are not beside these tests"),
]


@pytest.mark.parametrize("ranks", [4, 16])
def test_equal_bits(ranks: int) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = re.findall(rf"^{ranks} ranks, (\w+): equal bits, .* ratio [\d.]+$", done.stdout, re.M)
    assert lines == ["4K", "256K", "4M"]
