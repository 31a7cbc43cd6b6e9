"""What a rank shows with a plain store is seen by those that fall asleep or break the communicator."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path

import pytest
from support.libraries import client, library, run_client, runtime_program, shared_library
from support.ranks import SUCCESS, ranks

HERE = Path(__file__).parent


def refusing(when: str) -> dict[str, str]:
    return {"LD_PRELOAD": str(shared_library(HERE / "refuse_membarrier.c")), "REFUSE": when}


def refusals(done: subprocess.CompletedProcess[str]) -> list[int]:
    """How often each process was refused."""
    return [int(times) for times in re.findall(r"refused (\d+) times", done.stderr)]


def missed(refuse: str, *arguments: str) -> int:
    """How often neither side saw the other's store."""
    program = runtime_program(HERE / "fences.cpp", frozenset({"segment", "status"}))
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, **refusing(refuse)},
    )
    assert (sum(refusals(done)) > 0) == (refuse != "none")
    return int(done.stdout)


@pytest.mark.parametrize("refuse", ["none", "all"])
def test_one_side_sees_what_the_other_stored(refuse: str) -> None:
    assert missed(refuse) == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere frequent stores are sequentially consistent")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core sees its own stores")
def test_without_the_fence_both_miss_it() -> None:
    assert missed("none", "unsettled") > 0


@pytest.mark.parametrize(("refuse", "ways"), [("all", "threads"), ("all", "processes"), ("one", "processes")])
def test_every_call_without_membarrier(refuse: str, ways: str) -> None:
    done = run_client([client(HERE / "client.c", "cores"), ways, "3", "mixed"], **refusing(refuse))
    assert len(refusals(done)) == (3 if (refuse, ways) == ("all", "processes") else 1)


@pytest.mark.parametrize("ways", ["threads", "processes"])
@pytest.mark.parametrize("refuse", ["all", "late"])
def test_an_abort_while_others_read_without_membarrier(refuse: str, ways: str) -> None:
    done = run_client([client(HERE / "abort.c", "cores"), ways, "3", "memalloc"], " calls\n", **refusing(refuse))
    assert sum(refusals(done)) > 0


@pytest.mark.parametrize("refuse", ["none", "all", "late"])
def test_no_wake_is_lost(refuse: str) -> None:
    """Sleepers that nothing else would wake."""
    with ranks(library("cores"), 3, **refusing(refuse), ENDLESS="1") as team:
        assert [answer["result"] for answer in team.init()] == [SUCCESS] * 3
        for late in range(12):
            for rank in range(3):
                if rank != late % 3:
                    team.tell(rank, do="call")
            time.sleep(0.002 * late)  # from 2 ms on they sleep
            team.tell(late % 3, do="call")
            assert [team.hear(rank)["result"] for rank in range(3)] == [SUCCESS] * 3
