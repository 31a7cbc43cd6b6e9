"""The loops of reductions, for every instruction set that this machine has, beside one element at a time."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from support.libraries import runtime_program

HERE = Path(__file__).parent
TYPES, OPERATIONS = 12, 4
CASES = 4 * 10 * 3 * 8  # sources, elements, places in memory, ways to finish


def test_every_type_and_operation() -> None:
    program = runtime_program(HERE / "reduce_kernels.cpp", frozenset({"host_reduce_kernels"}))
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    cases, _, rest = done.stdout.partition(" ")
    assert rest == "cases, 0 types wrong\n"
    sets = [1, 2] if platform.machine() == "x86_64" else [1]  # a processor may lack the newer one
    assert int(cases) in [TYPES * OPERATIONS * CASES * n for n in sets]
