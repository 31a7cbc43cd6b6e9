"""COLLC_CHANNELS on the host target."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.libraries import client, library, run_client
from support.ranks import INVALID_USAGE, ranks

HERE = Path(__file__).parent


@pytest.mark.parametrize(("channels", "ways"), [("1", "threads"), ("2", "thread")])
def test_fewer_channels_side_by_side_do_the_same(channels: str, ways: str) -> None:
    done = run_client([client(HERE / "client.c", "cores"), ways, "3"], COLLC_CHANNELS=channels)
    assert int(done.stdout.split()[0]) > 1_000_000


@pytest.mark.parametrize("value", ["banana", "-3", "65", "1.5"])
def test_no_number_of_channels_is_heard_of(value: str) -> None:
    done = subprocess.run(
        [client(HERE / "bits.c", "cores"), "threads", "3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "COLLC_CHANNELS": value},
    )
    assert done.returncode == 1
    assert f"COLLC_CHANNELS={value} is not a " in done.stderr


def test_a_rank_that_waits_with_one_channel_names_whom_it_waits_for() -> None:
    with ranks(library("cores"), 3, COLLC_CHANNELS="1", COLLC_TIMEOUT="0.5") as team:
        assert {answer["result"] for answer in team.init()} == {0}
        for rank in (1, 2):
            team.tell(rank, do="call", collective="broadcast", root=0, count=100_000)
        answers = [team.hear(rank) for rank in (1, 2)]
        assert any("waits for rank 0 in" in answer["text"] for answer in answers)


def test_ranks_with_different_channels_are_told_so() -> None:
    with ranks(library("odd"), 3) as team:
        unique = team.ask(0, do="id")["id"]
        for rank in range(3):
            team.ask(rank, do="environment", name="COLLC_CHANNELS", value=str(1 + rank // 2))
        for rank in range(3):
            team.tell(rank, do="init", nranks=3, id=unique, rank=rank)
        answers = [team.hear(rank) for rank in range(3)]
    assert {answer["result"] for answer in answers} == {INVALID_USAGE}
    assert all("COLLC_CHANNELS is " in answer["text"] for answer in answers)
