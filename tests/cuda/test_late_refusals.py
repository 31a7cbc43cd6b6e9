"""Communicators without a plan go to the real NCCL, even late: every step of a creation fails once."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from mock_jobs import HERE, job
from mock_late import PLANTED
from support.libraries import fake_nccl

from collc.build.toolchain import find_cxx, run_tool

FAKE = Path(__file__).parent.parent / "runtime" / "fake_nccl.c"
# Steps without which no plan runs. After others that fail, other memory takes the place of the GPUs'.
NEEDED = {"load", "event_create", "allocate", "fill_async", "upload_async", "allocate_host", "host_address"}
# By what a job may be forbidden, the steps of its creation beside these.
MACHINES = {
    "peers": ({}, {"create", "export", "import", "map", "set_access", "unmap"}),
    "handles": ({"MOCK_VMM": "0"}, {"ipc_get", "ipc_open"}),
    "pinned": ({"MOCK_NO_PEER": "all"}, {"register_host"}),
}
SLOW_MACHINES = [pytest.param(name, marks=pytest.mark.slow) for name in ("peers", "handles")]


@pytest.mark.parametrize("machine", [*SLOW_MACHINES, "pinned"])
def test_every_step_of_a_creation_fails_once(machine: str) -> None:
    settings, others = MACHINES[machine]
    answers = job("failing_steps", seconds=240, COLLC_NCCL=str(fake_nccl(FAKE)), own=dict.fromkeys(range(3), settings))
    assert answers[0] == answers[1] == answers[2]
    *failed, last = answers[0]
    assert last == ["", "ours"]  # a creation without a failure
    assert {name for name, _ in failed} >= NEEDED | others
    for name, served_by in failed:
        assert served_by == "theirs" or (served_by == "ours" and name not in NEEDED | {"register_host"}), name


def nothing_is_left(answer: dict[str, Any], refused: int = 0) -> None:
    """Dozens of communicators were created, or their creation failed. A thread or the loader maps less than that.

    Args:
        answer: what the rank says.
        refused: handles of memory that the driver refused to release. Each keeps its piece and its descriptor.
    """
    more = answer["more"]
    assert answer["pieces"] == refused, answer
    assert more["maps"] < 10, more
    assert more["fd"] - refused < 6, more
    assert more["task"] < 3, more


def test_without_a_real_nccl_every_rank_hears_what_failed_where() -> None:
    answers = job("left_by_failing_steps", seconds=240, COLLC_NCCL="/nowhere/libnccl.so.2")
    for rank, answer in enumerate(answers):
        *failed, _ = answer["said"]
        nothing_is_left(answer, sum(name == "release_handle" for name, _ in failed) if rank == PLANTED else 0)
        for name, text in failed:
            if text != "ours":
                assert "no NCCL was found to take it" in text, (name, text)
                assert rank == PLANTED or f"rank {PLANTED}" in text, (name, text)
        # A rank whose creation fails does not wait 0.5 s for others to close its memory: they have not heard of it yet.
        seconds = list(zip((text == "ours" for _, text in answer["said"]), answer["seconds"], strict=True))
        of_failures, of_others = (median(s for ours, s in seconds if ours is served) for served in (False, True))
        assert of_failures < of_others + 0.4, (of_failures, of_others)


CALLS = ("memfd_create", "posix_fallocate", "mmap", "pthread_create", "bind", "listen", "sendmsg", "recvmsg")
FIRST = set(CALLS) - {"recvmsg"}  # of rank 0, which makes what the others fetch
SYSTEMS: dict[str, dict[str, str]] = {"peers": {}, "pinned": {"MOCK_NO_PEER": "all"}, "handles": {"MOCK_VMM": "0"}}


@pytest.mark.parametrize("planted", [0, 1])
@pytest.mark.parametrize("system", ["peers", "pinned", pytest.param("handles", marks=pytest.mark.slow)])
def test_every_call_of_the_system_in_a_creation_fails_once(system: str, planted: int, tmp_path: Path) -> None:
    """Memory, maps, threads, sockets, descriptors: all ranks get the same result, and the next creation works."""
    shim = tmp_path / "system_faults.so"
    run_tool([find_cxx().path, "-xc", "-shared", "-fPIC", str(HERE / "system_faults.c"), "-o", str(shim), "-ldl"])
    answers = job(
        "failing_system_calls",
        given={"planted": planted, "calls": CALLS},
        seconds=100,
        COLLC_NCCL=str(fake_nccl(FAKE)),
        COLLC_BOOTSTRAP_TIMEOUT="10",
        LD_PRELOAD=str(shim),
        own=dict.fromkeys(range(3), SYSTEMS[system]),
    )
    assert all(isinstance(said, list) for said in answers), answers
    names = [name for name, _ in answers[0]]
    assert (names[0], names[-1]) == ("nothing", "nothing")
    assert {name.split("-")[0] for name in names} >= (FIRST if planted == 0 else {"mmap", "pthread_create", "recvmsg"})
    for one in zip(*answers, strict=True):
        assert len({name for name, _ in one}) == 1
        ends = {end if end in ("ours", "theirs") else "an error" for _, end in one}
        assert len(ends) == 1, one
        assert ends == {"ours"} or one[0][0] != "nothing"
        assert all(end and "\n" not in end for _, end in one)
        # A rank reports a lost answer; the rank that sent it has gone.
        assert not any("Connection refused" in end for name, end in one if name.startswith("recvmsg")), one
