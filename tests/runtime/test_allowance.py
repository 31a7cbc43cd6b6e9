"""How much of a connection waits in the kernel: links stay full, little waits before slow ones, nothing is stuck."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.libraries import runtime_program

SOURCE = Path(__file__).parent / "allowance.cpp"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [pytest.param(["links"], "81 links", id="links"), pytest.param(["pauses", "300"], "300 seeds", id="pauses")],
)
def test_rules_of_the_allowance(arguments: list[str], said: str) -> None:
    """`links`: 10 Mbit/s to 100 Gbit/s, round trips of 10 us to 50 ms; `pauses`: messages of any size with pauses."""
    program = runtime_program(SOURCE, frozenset())
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
