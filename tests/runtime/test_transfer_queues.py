"""The shared memory of sends and receives, which every communicator reserves for all pairs of its ranks."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.libraries import runtime_program

SOURCE = Path(__file__).parent / "transfer_queues.cpp"
MOST_SLOT_BYTES = 32 << 20  # kMostBytes of transport/transfers.cpp, for all slots together
LINE = 64


PARTS = frozenset({"transport_transfers", "control_segment", "control_liveness", "control_call_log", "base_status"})


def test_the_queues_of_many_ranks_stay_small_and_work() -> None:
    numbers = range(1, 363)
    done = subprocess.run(
        [runtime_program(SOURCE, PARTS), *map(str, numbers)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == list(numbers)
    for nranks, slot, slots, end in rows:
        assert slot >= LINE, nranks
        assert slot % LINE == 0, nranks
        assert slots <= MOST_SLOT_BYTES, nranks
        assert end == slots + nranks**2 * 2 * LINE
    # Nothing is given away: the memory is used, until slots are as large as pays.
    assert all(slots > MOST_SLOT_BYTES / 2 or slot == 128 << 10 for _, slot, slots, _ in rows)
