"""What a plan cannot serve goes to the real NCCL, also when that shows late: every step of a creation fails once."""

from __future__ import annotations

from pathlib import Path

import pytest
from mock_jobs import job
from support.libraries import fake_nccl

FAKE = Path(__file__).parent.parent / "runtime" / "fake_nccl.c"
# Steps without which no plan runs. After others that fail, other memory takes the place of the GPUs'.
NEEDED = {"load", "event_create", "allocate", "fill_async", "upload_async", "allocate_host", "host_address"}
# By what a job may be forbidden, the steps of its creation beside these.
MACHINES = {"peers": ({}, {"ipc_get", "ipc_open"}), "pinned": ({"MOCK_NO_PEER": "all"}, {"register_host"})}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_step_of_a_creation_fails_once(machine: str) -> None:
    settings, others = MACHINES[machine]
    answers = job("failing_steps", seconds=240, COLLC_NCCL=str(fake_nccl(FAKE)), own=dict.fromkeys(range(3), settings))
    assert answers[0] == answers[1] == answers[2]
    *failed, last = answers[0]
    assert last == ["", "ours"]  # a creation in which nothing failed
    assert {name for name, _ in failed} >= NEEDED | others
    for name, served_by in failed:
        assert served_by == "theirs" or (served_by == "ours" and name not in NEEDED | {"register_host"}), name


def test_without_a_real_nccl_every_rank_hears_what_failed_where() -> None:
    answers = job("failing_steps", seconds=240, COLLC_NCCL="/nowhere/libnccl.so.2")
    for rank, said in enumerate(answers):
        for name, text in said[:-1]:
            if text != "ours":
                assert "no NCCL was found to take it" in text, (name, text)
                assert rank == 1 or "rank 1" in text, (name, text)
