"""The example that trains with torchrun, as docs/torch.md starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp_cnn.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not EXAMPLE.is_file(), reason="the examples are not beside these tests"),
]


def test_it_trains(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*run, str(EXAMPLE), "--steps", "60"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    right = re.findall(r"^step (\d+): (\d+)% of all ranks' images right", done.stdout, re.M)
    assert [step for step, _ in right] == ["20", "40", "60"]
    # Chance is 25 %; the seeds are fixed, and the network knows nearly all by then.
    assert int(right[-1][1]) > 50
    assert list(tmp_path.iterdir()) == []
