"""Limits of a process, and pointers that are not ours: an error line, never a signal."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.libraries import client, run_client

HERE = Path(__file__).parent


@pytest.mark.parametrize("bytes_", [0, 1 << 16])
def test_a_limit_of_file_sizes_is_an_error_of_creation(bytes_: int) -> None:
    done = run_client([client(HERE / "limits.c", "odd"), "3", str(bytes_)], "3 refused\n")
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    for words in ("of shared memory for 3 ranks", "ulimit -f", "File too large"):
        assert all(words in line for line in lines)


def test_a_limit_that_is_large_enough_disturbs_nobody() -> None:
    run_client([client(HERE / "limits.c", "odd"), "3", str(1 << 30)], "0 refused\n")


def test_foreign_pointers_are_not_freed() -> None:
    run_client([client(HERE / "foreign.c", "pair")], "all refused\n")
