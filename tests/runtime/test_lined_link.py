"""A link whose FIFO has lines: an announced or partly received chunk counts as progress, so proxies do not sleep."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.libraries import runtime_program

SOURCE = Path(__file__).parent / "lined_link.cpp"
PARTS = frozenset(
    {
        "base_environment",
        "base_log",
        "base_status",
        "control_call_log",
        "control_liveness",
        "control_report_loss",
        "control_segment",
        "plan_weights",
        "transport_fifo",
        "transport_transfers",
        "wire_remote_queues",
        "wire_lined_slots",
        "wire_link",
        "wire_remote_ranks",
        "wire_rails",
    }
)


def test_what_counts_as_a_move_and_where_data_stand() -> None:
    done = subprocess.run([runtime_program(SOURCE, PARTS)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
