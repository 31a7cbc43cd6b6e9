"""The numbers of a communicator's calls, and its own reductions."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.libraries import runtime_program

SOURCE = Path(__file__).parent / "communicator_parts.cpp"


def test_numbers_and_reductions_of_a_communicator() -> None:
    program = runtime_program(SOURCE, frozenset({"base_status"}))
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n"
