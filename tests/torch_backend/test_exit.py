"""A program that ends while threads of the backend run PyTorch's code ends with its own exit code."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="the extra `torch` is not installed")

from torch_backend.launch import HERE, SECONDS

CODES = {"returns": 0, "exits": 3, "raises": 1}


def test_no_thread_aborts_a_program_that_ends() -> None:
    command = [sys.executable, "-W", "ignore", str(HERE / "endings.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    codes = json.loads(done.stdout)
    assert len(codes) == 9
    assert codes == {name: CODES[name.split()[1]] for name in codes}, done.stderr[-4000:]
    assert "terminate called" not in done.stderr
