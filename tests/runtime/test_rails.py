"""The rules of rails by themselves: which one brings what, what is sent again, what is measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.libraries import runtime_program

SOURCE = Path(__file__).parent / "rails.cpp"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["choose"], "5994 cases", id="choose"),
        pytest.param(["changes"], "96 changes", id="changes"),
        pytest.param(["windows", "400"], "400 seeds", id="windows"),
        pytest.param(["rates"], "rates", id="rates"),
    ],
)
def test_rules_of_rails(arguments: list[str], said: str) -> None:
    """`choose`: ten rates on each of three rails, FIFOs and windows; `windows`: rails lost at any moment."""
    program = runtime_program(SOURCE, frozenset({"wire_rails"}))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
