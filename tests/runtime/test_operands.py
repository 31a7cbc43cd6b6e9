"""Which places of a chunk go past the caches together."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.libraries import runtime_program

SOURCE = Path(__file__).parent / "operands.cpp"


def test_what_goes_past_the_caches_is_first_and_aligned_alike() -> None:
    done = subprocess.run([str(runtime_program(SOURCE, frozenset()))], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    tried, past = map(int, done.stdout.split())
    assert tried == 2 * sum(4**n for n in range(1, 5))
    # Unless nothing is to go there, something does.
    assert past == tried - 2 * sum(2**n for n in range(1, 5))
