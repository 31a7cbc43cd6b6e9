"""Named pipes in the place of libraries that variables name: nobody waits for a writer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.libraries import library
from support.ranks import SUCCESS, ranks


@pytest.mark.parametrize("name", ["NCCL_PROFILER_PLUGIN", "NVTX_INJECTION64_PATH"])
def test_a_communicator_is_made_without_it(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe\x1b[31m.so"
    os.mkfifo(pipe)
    with ranks(library("pair"), 2, **{name: str(pipe), "COLLC_DEBUG": "WARN"}) as team:
        assert [answer["result"] for answer in [*team.init(), *team.all(do="call")]] == [SUCCESS] * 4
    said = [line for line in capfd.readouterr().err.splitlines() if name in line]
    assert len(said) == 2
    assert all(line.endswith(f"{name}: {tmp_path}/pipe?[31m.so is no regular file") for line in said), said


def test_the_real_nccl_may_not_be_one(tmp_path: Path) -> None:
    """A library that must hand a communicator over says why it cannot."""
    pipe = tmp_path / "libnccl.so.2"
    os.mkfifo(pipe)
    with ranks(library("pair"), 3, COLLC_NCCL=str(pipe)) as team:
        answers = team.init()
        assert all(f"{pipe} is no regular file" in answer["text"] for answer in answers), answers
